"""Prompts that end inside a part of the answer: inside the markers around the text for the user."""

import pytest

from antiphon.events.inputs import InputMessage
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import ModelFormat, PromptInput, TemplateOptions
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Say
from tests.harmony import parser_helpers

EACH_WRAPPING_DIALECT = pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS.values() if dialect.answer], ids=lambda dialect: dialect.name
)
KIMI_TOKENS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")


def create_format(dialect: Dialect, template: str, tokens: tuple[str, ...] = KIMI_TOKENS) -> ModelFormat:
    return TemplateFormat(dialect, ByteVocabulary((), (*tokens, "<|turn|>")), ChatTemplate(template))


def read_text(model_format: ModelFormat, prompt_input: PromptInput, output: str) -> str:
    """Returns the text for the user in an output that follows the prompt."""
    prompt = model_format.render_prompt(prompt_input, now=parser_helpers.NOW)
    reader = model_format.create_reader(prompt, prompt_input)
    segments = [*reader.feed(model_format.encode(output)), *reader.finish(natural=True)]
    assert all(isinstance(segment, Say) for segment in segments), segments
    return "".join(segment.text for segment in segments if isinstance(segment, Say))


@EACH_WRAPPING_DIALECT
def test_closer_of_a_wrapper_that_the_prompt_opened_is_no_text(dialect: Dialect) -> None:
    assert dialect.answer is not None
    opener, closer = dialect.answer
    conversation = PromptInput(items=(InputMessage(role="user", content=f"Say {opener}, please."),))
    template = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}<|turn|>"
    opened = create_format(dialect, template + opener)
    assert opened.render_prompt(conversation, now=parser_helpers.NOW).in_wrapper
    assert read_text(opened, conversation, f"Hi{closer}") == "Hi"
    assert read_text(opened, conversation, f"\nHi\n{closer}") == "\nHi"
    assert read_text(opened, conversation, f"{opener}\nHi\n{closer}") == "Hi", "the model opens it again"
    for tail in ("", f"{opener}Old.{closer}"):
        closed = create_format(dialect, template + tail).render_prompt(conversation, now=parser_helpers.NOW)
        assert not closed.in_wrapper


@EACH_WRAPPING_DIALECT
def test_continued_message_ends_at_the_closer_of_its_wrapper(dialect: Dialect) -> None:
    assert dialect.answer is not None
    opener, closer = dialect.answer
    wrapped = f"{opener}{{{{ m.content }}}}{closer}"
    template = f"{{% for m in messages %}}<|turn|>{{% if m.role == 'user' %}}{{{{ m.content }}}}{{% else %}}{wrapped}{{% endif %}}{{% endfor %}}"
    conversation = PromptInput(
        items=(InputMessage(role="user", content="Count."), InputMessage(role="assistant", content="One,")),
        template=TemplateOptions(continue_final_message=True),
    )
    model_format = create_format(dialect, template)
    prompt = model_format.render_prompt(conversation, now=parser_helpers.NOW)
    assert prompt.in_text and prompt.in_wrapper and prompt.text.endswith("One,")
    assert read_text(model_format, conversation, f" two.{closer}") == " two."


def test_reasoning_that_the_prompt_opened_is_not_in_a_wrapper() -> None:
    dialect = DIALECTS["kimi-k3"]
    for tail, expected in (
        ("<|open|>think<|sep|>", (True, False)),
        ("<|open|>response<|sep|>", (False, True)),
        ("<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>", (False, True)),
        ("<|open|>response<|sep|>Old.<|close|>response<|sep|><|end_of_msg|>", (False, False)),
    ):
        prompt = create_format(dialect, f"<|turn|>{tail}").render_prompt(PromptInput(), now=parser_helpers.NOW)
        assert (prompt.in_reasoning, prompt.in_wrapper) == expected
