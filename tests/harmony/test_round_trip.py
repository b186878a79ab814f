"""A finished turn, written back into the prompt and read again, is the same turn: in every dialect."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.events.inputs import AnyInput, InputCustomCall, InputFunctionCall, InputMessage, InputReasoning
from antiphon.events.items import ReasoningText
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Arguments, Call, Say, Segment, Think
from tests.harmony import parser_helpers
from tests.harmony.samples import written

CALLING = [dialect for dialect in DIALECTS.values() if dialect.calls]
USER = InputMessage(role="user", content="Go on.")
PATCH = '*** Begin Patch\n+say("hi") \\n {"a": [1]}\n*** End Patch'


def formats(dialect: Dialect) -> list[TemplateFormat]:
    """With a template that knows reasoning and no tools, over letters and over tokens."""
    opener, closer = dialect.think or ("", "")
    thought = f"{{{{ {json.dumps(opener)} }}}}\n{{{{ m.reasoning_content }}}}\n{{{{ {json.dumps(closer)} }}}}\n\n"
    shown = f"{{% if m.reasoning_content %}}{thought}{{% endif %}}{{{{ m.content }}}}"
    template = ChatTemplate(
        f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{shown}<|im_end|>\n{{% endfor %}}<|im_start|>assistant\n"
    )
    ends = ("<|im_start|>", "<|im_end|>")
    added = tuple(
        marker for marker in dialect.all_markers if marker.startswith(("<", "[")) and marker.endswith((">", "]"))
    )
    return [TemplateFormat(dialect, ByteVocabulary(words, ends), template) for words in ((), added)]


def items_of(said: Sequence[Segment]) -> list[AnyInput]:
    """What a client would send back."""
    items: list[AnyInput] = []
    for segment in said:
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


def told(items: Sequence[AnyInput]) -> list[Any]:
    """Items up to how JSON is spelled."""
    return [
        (item.name, json.loads(item.arguments or "{}")) if isinstance(item, InputFunctionCall) else item
        for item in items
    ]


def custom(dialect: Dialect) -> str | None:
    offer = parser_helpers.TOOLS.find_tool("apply_patch")
    assert offer is not None
    return next((text for frame in dialect.calls if (text := frame.write_calls([(offer, PATCH)])) is not None), None)


def turns(dialect: Dialect) -> list[str]:
    opener, closer = dialect.think or ("", "")
    thought = f"{opener}\nLet me see.\n{closer}\n\n" if dialect.think else ""
    calls = written(dialect, "two", "types", "text")
    found = [f"{thought}Good morning.", f"{thought}{calls}"]
    if not dialect.calls[0].head_only:
        found.append(f"{thought}I will.\n\n{calls}")
    return [*found, *filter(None, [custom(dialect)])]


def test_where_there_are_only_strings_a_custom_tools_text_is_one() -> None:
    call = InputCustomCall(call_id="call_0", name="apply_patch", input=PATCH)
    for ready in formats(DIALECTS["pythonic"]):
        prompt = ready.render_prompt(parser_helpers.conversation(items=(USER, call)), now=parser_helpers.NOW)
        shown = prompt.text.rpartition("<|im_start|>assistant")[0].split("<|im_start|>assistant\n")[1]
        again, _ = parser_helpers.read(ready, ready.encode(shown.partition("<|im_end|>")[0]))
        assert items_of(again) == [call]


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
def test_a_turn_comes_back_as_it_was(dialect: Dialect) -> None:
    for ready in formats(dialect):
        for turn in turns(dialect):
            said, _ = parser_helpers.read(ready, ready.encode(turn))
            items = items_of(said)
            assert items
            prompt = ready.render_prompt(parser_helpers.conversation(items=(USER, *items)), now=parser_helpers.NOW)
            parts = prompt.text.rpartition("<|im_start|>assistant")[0].split("<|im_start|>assistant\n")[1:]
            shown = "\n\n".join(part.partition("<|im_end|>")[0] for part in parts)
            again, _ = parser_helpers.read(ready, ready.encode(shown))
            assert told(items_of(again)) == told(items), shown
