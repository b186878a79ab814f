"""Applies what a request changes about its prompt: variables of the template, its effort, a message to continue.

Templates have many names for the reasoning effort.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from antiphon.harmony.format import THINKING_SWITCHES, TemplateOptions
from antiphon.harmony.prompt.message_shape import ChatMessage
from antiphon.harmony.rendered_prompt import RenderError, UnsupportedOptionError
from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper

_EFFORT_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_SWITCHES = (*THINKING_SWITCHES, "reasoning")
_MODES = {"thinking_mode": ("enabled", "disabled")}
"""Variables that turn reasoning on and off by a word."""
_BUDGETS = ("thinking_budget",)
"""Variables that limit the tokens of reasoning. Zero turns it off."""
_OFF_EFFORTS = ("none", "no_think", "minimal")
"""Values of an effort that turn reasoning off in templates that name them."""
_NEAREST_EFFORTS = {
    "minimal": ("low",),
    "low": ("minimal", "medium"),
    "medium": ("high", "low"),
    "high": ("xhigh", "medium"),
    "xhigh": ("high", "max"),
    "max": ("xhigh", "high"),
}
"""Efforts to use in place of one that a template refuses, in order."""


def check_options(options: TemplateOptions, readable: Collection[str] | None) -> None:
    """Raises `UnsupportedOptionError` for a value that the template would ignore.

    `readable`: variables that the template reads and the server does not set; None if they are not known.
    """
    if readable is None:
        return
    for name in options.variables:
        if name not in readable and name not in THINKING_SWITCHES:
            message = "The chat template of this model does not read this variable, or the server sets it."
            raise UnsupportedOptionError(message, f"chat_template_kwargs.{name}")
    if options.documents and "documents" not in readable:
        raise UnsupportedOptionError("The chat template of this model shows no documents.", "documents")
    is_whole = not options.add_generation_prompt and not options.continue_final_message
    if is_whole and "add_generation_prompt" not in readable:
        message = "The chat template of this model does not read it: every prompt ends in the same way."
        raise UnsupportedOptionError(message, "add_generation_prompt")


def build_variables(
    options: TemplateOptions,
    escaper: SpecialTokenEscaper,
    readable: Collection[str] | None,
    constants: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the template's variables that the request sets, with their strings escaped.

    A switch of reasoning that the template does not read is left out. A string among the `constants`, with which the
    template may compare it, is escaped only where it contains a whole special token.
    """
    variables = {
        name: _escape_variable(value, escaper, constants)
        for name, value in options.variables.items()
        if name not in THINKING_SWITCHES or readable is None or name in readable
    }
    if options.documents:
        variables["documents"] = escaper.escape_value(list(options.documents))
    return variables


def _escape_variable(value: Any, escaper: SpecialTokenEscaper, constants: Collection[str]) -> Any:
    if isinstance(value, str) and value in constants and not escaper.contains_token(value):
        return value
    return escaper.escape_value(value)


def mark_final_message(messages: list[ChatMessage], escaper: SpecialTokenEscaper) -> None:
    """Marks the end of the last message's text. Raises `RenderError` if it is not a text of the assistant's."""
    last: Mapping[str, Any] = messages[-1] if messages else {}
    if last.get("role") != "assistant" or "tool_calls" in last or not isinstance(last.get("content"), str):
        message = "The answer can only continue a last message of the assistant that ends with text."
        raise RenderError(message, "continue_final_message")
    messages[-1] = {**last, "content": last["content"] + escaper.end_mark}


def cut_at_mark(rendered: str, escaper: SpecialTokenEscaper) -> str:
    """Returns the prompt up to the marked end of the last message. Raises `UnsupportedOptionError` without a mark."""
    text, mark, _ = rendered.rpartition(escaper.end_mark)
    if not mark:
        message = "The chat template of this model does not show the text of the last message."
        raise UnsupportedOptionError(message, "continue_final_message")
    return text.replace(escaper.end_mark, "")


def list_effort_variables(
    effort: str, readable: Collection[str] | None, constants: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """Yields variables to try in order: those of the effort itself, then those of the nearest ones.

    `readable`: variables that the template reads; None if they are not known. `constants`: its string constants.
    """
    thinks = effort != "none"
    variables: dict[str, Any] = dict.fromkeys(_SWITCHES, thinks)
    variables |= {name: words[0 if thinks else 1] for name, words in _MODES.items() if words[1] in constants}
    if not thinks:
        variables |= dict.fromkeys(_BUDGETS, 0)
        values = [value for value in _OFF_EFFORTS if value in constants]
    else:
        values = [effort, *_NEAREST_EFFORTS.get(effort, ())]
    for value in values:
        yield _keep_readable({**variables, **dict.fromkeys(_EFFORT_NAMES, value)}, readable)
    yield _keep_readable(variables, readable)


def _keep_readable(variables: Mapping[str, Any], readable: Collection[str] | None) -> Mapping[str, Any]:
    """Returns the variables that the template reads, and the usual ones, which no template takes for another thing."""
    usual = (*THINKING_SWITCHES, "reasoning_effort")
    return {name: value for name, value in variables.items() if name in usual or readable is None or name in readable}
