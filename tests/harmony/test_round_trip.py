"""A finished turn that is rendered into the next prompt parses as the same turn, in every dialect."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
)
from antiphon.events.items import ReasoningText
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Arguments, Call, Say, Segment, Think
from tests.harmony import parser_helpers
from tests.harmony.samples import write_sample_calls

CALLING_DIALECTS = [dialect for dialect in DIALECTS.values() if dialect.calls]
USER_MESSAGE = InputMessage(role="user", content="Go on.")
PATCH_TEXT = '*** Begin Patch\n+say("hi") \\n {"a": [1]}\n*** End Patch'


def build_formats(dialect: Dialect) -> list[TemplateFormat]:
    """Returns formats with markers as bytes and as tokens. Their template renders reasoning, but no tools."""
    opener, closer = dialect.think or ("", "")
    reasoning = f"{{{{ {json.dumps(opener)} }}}}\n{{{{ m.reasoning_content }}}}\n{{{{ {json.dumps(closer)} }}}}\n\n"
    message = f"{{% if m.reasoning_content %}}{reasoning}{{% endif %}}{{{{ m.content }}}}"
    template = ChatTemplate(
        f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{message}<|im_end|>\n{{% endfor %}}<|im_start|>assistant\n"
    )
    special_tokens = ("<|im_start|>", "<|im_end|>")
    token_markers = tuple(
        marker for marker in dialect.all_markers if marker.startswith(("<", "[")) and marker.endswith((">", "]"))
    )
    return [
        TemplateFormat(dialect, ByteVocabulary(markers, special_tokens), template) for markers in ((), token_markers)
    ]


def build_input_items(segments: Sequence[Segment]) -> list[AnyInput]:
    """Returns the input items that a client sends back for these segments."""
    items: list[AnyInput] = []
    for segment in segments:
        match segment:
            case Think(text) if text.strip():
                items.append(InputReasoning(summary=(), content=(ReasoningText(text=text.strip()),)))
            case Say(text) if text.strip():
                items.append(InputMessage(role="assistant", content=text.strip()))
            case Call(name=name, kind="custom"):
                items.append(InputCustomCall(call_id=f"call_{len(items)}", name=name, input=""))
            case Call(name=name):
                items.append(InputFunctionCall(call_id=f"call_{len(items)}", name=name, arguments=""))
            case Arguments(text):
                last: Any = items[-1]
                field = "input" if isinstance(last, InputCustomCall) else "arguments"
                items[-1] = type(last)(call_id=last.call_id, name=last.name, **{field: text})
    return items


def parse_arguments(items: Sequence[AnyInput]) -> list[Any]:
    """Replaces calls by (name, parsed arguments), since the spelling of the JSON may differ."""
    return [
        (item.name, json.loads(item.arguments or "{}")) if isinstance(item, InputFunctionCall) else item
        for item in items
    ]


def write_custom_call(dialect: Dialect) -> str | None:
    offer = parser_helpers.TOOLS.find_tool("apply_patch")
    assert offer is not None
    return next(
        (text for frame in dialect.calls if (text := frame.write_calls([(offer, PATCH_TEXT)])) is not None), None
    )


def list_turns(dialect: Dialect) -> list[str]:
    opener, closer = dialect.think or ("", "")
    reasoning = f"{opener}\nLet me see.\n{closer}\n\n" if dialect.think else ""
    calls = write_sample_calls(dialect, "two", "types", "text")
    turns = [f"{reasoning}Good morning.", f"{reasoning}{calls}"]
    if not dialect.calls[0].head_only:
        turns.append(f"{reasoning}I will.\n\n{calls}")
    return [*turns, *filter(None, [write_custom_call(dialect)])]


def test_pythonic_custom_call_survives_a_round_trip() -> None:
    call = InputCustomCall(call_id="call_0", name="apply_patch", input=PATCH_TEXT)
    for model_format in build_formats(DIALECTS["pythonic"]):
        prompt = model_format.render_prompt(
            parser_helpers.build_prompt_input(items=(USER_MESSAGE, call)), now=parser_helpers.NOW
        )
        rendered = prompt.text.rpartition("<|im_start|>assistant")[0].split("<|im_start|>assistant\n")[1]
        reparsed, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(rendered.partition("<|im_end|>")[0])
        )
        assert build_input_items(reparsed) == [call]


@pytest.mark.parametrize("dialect", CALLING_DIALECTS, ids=lambda dialect: dialect.name)
def test_turn_survives_a_round_trip(dialect: Dialect) -> None:
    for model_format in build_formats(dialect):
        for turn in list_turns(dialect):
            segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(turn))
            items = build_input_items(segments)
            assert items
            prompt = model_format.render_prompt(
                parser_helpers.build_prompt_input(items=(USER_MESSAGE, *items)), now=parser_helpers.NOW
            )
            parts = prompt.text.rpartition("<|im_start|>assistant")[0].split("<|im_start|>assistant\n")[1:]
            rendered = "\n\n".join(part.partition("<|im_end|>")[0] for part in parts)
            reparsed, _ = parser_helpers.parse_tokens(model_format, model_format.encode(rendered))
            assert parse_arguments(build_input_items(reparsed)) == parse_arguments(items), rendered


def test_ids_of_written_kimi_calls_count_over_the_conversation() -> None:
    template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    model_format = TemplateFormat(DIALECTS["kimi-k2"], ByteVocabulary((), ("<|im_start|>", "<|im_end|>")), template)
    items: list[AnyInput] = [USER_MESSAGE]
    for round_ in range(2):
        for call in range(2):
            call_id = f"call_{round_}{call}"
            items.append(InputFunctionCall(call_id=call_id, name="now", arguments="{}"))
            items.append(InputFunctionOutput(call_id=call_id, output="1"))
    text = model_format.render_prompt(
        parser_helpers.build_prompt_input(items=tuple(items)), now=parser_helpers.NOW
    ).text
    assert re.findall(r"functions\.now:\d", text) == [f"functions.now:{number}" for number in range(4)]
