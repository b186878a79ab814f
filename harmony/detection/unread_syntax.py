"""Finds calls and reasoning that a chat template writes and its dialect does not read.

The dialect of an unknown model family is a guess. A template shows how its model writes calls, so a call that
it writes is read back: if that fails, those of the model would be text, and a line at the start says so.
"""

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import TypeAlias

from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.templates import probe
from antiphon.harmony.prompt.templates.template_renderer import TemplateRenderer
from antiphon.harmony.rendered_prompt import RenderError
from antiphon.state.segments import Arguments, Segment

ReadOutput: TypeAlias = Callable[[str, PromptInput], Iterable[Segment]]
"""Reads a text as the output of a model."""
_EXCERPT_CHARS = 60


def find_unread_syntax(dialect: Dialect, renderer: TemplateRenderer, read: ReadOutput) -> str:
    """Returns in one line what a dialect does not read of its template's calls and reasoning; empty if it reads all."""
    try:
        found = [_find_unread_call(renderer, read), _find_unread_reasoning(dialect, renderer)]
    except RenderError:  # a limit on the template's work
        return ""
    parts = [f"{kind} after {text!r}" for kind, text in zip(("calls", "reasoning"), found, strict=True) if text]
    if not parts:
        return ""
    return f"its chat template writes {' and '.join(parts)}, which dialect {dialect.name} does not read: they are text"


def _find_unread_call(renderer: TemplateRenderer, read: ReadOutput) -> str:
    """Returns the text in front of a call that is not read; empty if it is read, or if the template writes no calls."""
    conversation = probe.CALL_CONVERSATION
    rendered = renderer.render_probe(conversation, renderer.shape)
    if rendered is None or renderer.shape.written_calls:
        return ""
    begin = rendered.find(probe.USER) + len(probe.USER)
    name, end = rendered.find(probe.NAME, begin), rendered.find(probe.OUTPUT, begin)
    if not 0 < name < end:
        return ""
    question = renderer.render_probe(probe.QUESTION, renderer.shape) or ""
    num_common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(question, rendered, strict=False))))
    begins = {begin, max(begin, num_common)}
    if any(_has_arguments(read(rendered[index:end], conversation)) for index in begins):
        return ""
    return rendered[max(begin, name - _EXCERPT_CHARS) : name]


def _has_arguments(segments: Iterable[Segment]) -> bool:
    """Tells whether an output has the arguments of the call: a tool that was not offered has none."""
    return probe.VALUE in "".join(segment.text for segment in segments if isinstance(segment, Arguments))


def _find_unread_reasoning(dialect: Dialect, renderer: TemplateRenderer) -> str:
    """Returns the text in front of reasoning that does not begin with a marker of the dialect."""
    if not dialect.think_markers:
        return ""
    rendered = renderer.render_probe(probe.REASONING_CONVERSATION, renderer.shape) or ""
    if probe.THOUGHT not in rendered or probe.follows_opener(rendered, dialect.think_markers):
        return ""
    end = rendered.index(probe.THOUGHT)
    begin = rendered.rfind(probe.USER, 0, end) + len(probe.USER)
    return rendered[max(begin, end - _EXCERPT_CHARS) : end]
