"""Messages of Anthropic's form as items: calls and their results, blocks of each type, media, the system text."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.messages.conversation import ConversationReader, has_attribution, read_system
from antiphon.events.inputs import (
    HostedInput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    InputText,
)
from tests.app.requests.request_builders import summarize_error

DATA = "iVBORw0KGgo="
Message = dict[str, Any]


def decrypt(sealed: str) -> str | None:
    return sealed.removeprefix("sealed:") if sealed.startswith("sealed:") else None


def read_messages(*messages: Message) -> tuple[Any, ...]:
    return ConversationReader(decrypt).read_messages(messages)


def user(*content: Any) -> Message:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> Message:
    return {"role": "assistant", "content": list(content)}


def text(value: str) -> Message:
    return {"type": "text", "text": value}


def call(call_id: str, **sent: Any) -> Message:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": sent}


def result(call_id: str, *content: Any, **more: Any) -> Message:
    return {"type": "tool_result", "tool_use_id": call_id, "content": list(content), **more}


def image(**source: Any) -> Message:
    return {"type": "image", "source": source}


def document(source: Any, **more: Any) -> Message:
    return {"type": "document", "source": source, **more}


HI = user(text("hi"))
PNG = image(type="base64", media_type="image/png", data=DATA)
SERVER_CALL = {"type": "server_tool_use", "id": "s", "name": "x", "input": {}}

CONVERSATIONS: list[tuple[list[Message], str | None]] = [
    # Every call has its result in the next message, and every result a call in the one before.
    ([HI, assistant(call("a"), call("b")), user(result("b"), result("a"))], None),
    ([HI, assistant(call("a")), user(result("a")), assistant(call("a")), user(result("a"))], None),
    ([HI, assistant(call("a")), assistant(text("x")), user(result("a"))], "messages[1].content[0]"),
    ([HI, assistant(text("x"), call("a")), HI], "messages[1].content[1]"),
    ([HI, assistant(call("a"), call("b")), user(result("a"))], "messages[1].content[1]"),
    ([HI, assistant(call("a"))], "messages[1].content[0]"),
    ([HI, assistant(call("a")), user(result("a"), result("a"))], "messages[2].content[1].tool_use_id"),
    ([HI, assistant(call("a"), call("a")), user(result("a"))], "messages[1].content[1].id"),
    ([HI, assistant(call("a")), {"role": "system", "content": [result("a")]}], "messages[2].content[0].type"),
    ([user(text("hi"), call("a"))], "messages[0].content[1].type"),
    # The last message is the user's, or text of the assistant's.
    ([HI, assistant(text("x"))], None),
    ([HI, assistant()], None),
    ([HI, assistant({"type": "thinking", "thinking": "", "signature": "sealed:x"})], "messages"),
    ([HI, assistant(text("x"), SERVER_CALL)], "messages"),
    ([HI, assistant(SERVER_CALL), HI], None),
    ([HI, assistant(call("a")), user(result("a"))], None),
]


@pytest.mark.parametrize(("messages", "param"), CONVERSATIONS)
def test_order_of_calls_and_results(messages: list[Message], param: str | None) -> None:
    if param is None:
        assert read_messages(*messages)
        return
    with pytest.raises(ApiError) as caught:
        read_messages(*messages)
    assert summarize_error(caught.value)[::2] == (400, param)


def test_message_becomes_items_in_the_order_of_its_blocks() -> None:
    thinking = {"type": "thinking", "thinking": "changed", "signature": "sealed:Hm."}
    redacted = {"type": "redacted_thinking", "data": "sealed:Ha."}
    items = read_messages(
        HI,
        assistant(thinking, redacted, text("x"), SERVER_CALL, call("a", b=1)),
        user(result("a", text("1")), text("y")),
    )
    assert [type(item) for item in items] == [
        InputMessage, InputReasoning, InputReasoning, InputMessage, HostedInput, InputFunctionCall, InputFunctionOutput, InputMessage,
    ]  # fmt: skip
    assert [item.content[0].text for item in items[1:3]] == ["Hm.", "Ha."]
    assert items[5].arguments == '{"b": 1}'


@pytest.mark.parametrize(
    ("content", "count"), [([], 1), ([text("x")], 1), ([result("a")], 0), ([result("a"), text("x")], 1)]
)
def test_user_message_is_left_out_if_it_has_results_only(content: list[Any], count: int) -> None:
    before = [HI, assistant(call("a"))] if content and content[0]["type"] == "tool_result" else [HI]
    items = read_messages(*before, user(*content))
    assert sum(isinstance(item, InputMessage) for item in items) == 1 + count


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking"])
@pytest.mark.parametrize("sealed", ["forged", ""])
def test_thinking_that_this_server_did_not_seal_is_refused(kind: str, sealed: str) -> None:
    key = "signature" if kind == "thinking" else "data"
    with pytest.raises(ApiError) as caught:
        read_messages(HI, assistant({"type": kind, "thinking": "x", key: sealed}), HI)
    assert caught.value.param == f"messages[1].content[0].{key}"


@pytest.mark.parametrize(
    ("sent", "texts"),
    [
        (result("a"), []),
        (result("a", text("x"), text("y")), ["x", "y"]),
        ({**result("a"), "content": None}, []),
        ({**result("a"), "content": "x"}, ["x"]),
        (result("a", text("x"), is_error=False), ["x"]),
        (result("a", text("x"), text("y"), is_error=True), ["Error: x", "y"]),
        (result("a", is_error=True), ["Error: "]),
        (result("a", PNG, text("x"), is_error=True), ["Error: ", None, "x"]),
    ],
)
def test_output_of_a_call(sent: Message, texts: list[str | None]) -> None:
    *_, output = read_messages(HI, assistant(call("a")), user(sent))
    assert isinstance(output, InputFunctionOutput)
    assert [getattr(part, "text", None) for part in output.output] == texts


MEDIA: list[tuple[Message, Any]] = [
    (PNG, InputImage(image_url=DATA)),
    (image(type="url", url="http://a.example/b.png"), InputImage(image_url="http://a.example/b.png")),
    (image(type="file", file_id="f"), InputImage(file_id="f")),
    (document({"type": "base64", "data": DATA}), InputFile(file_data=DATA)),
    (document({"type": "base64", "data": DATA}, title=""), InputFile(file_data=DATA)),
    (document({"type": "url", "url": "http://a.example"}, title="A"), InputFile(file_url="http://a.example", filename="A")),
    (document({"type": "file", "file_id": "f"}), InputFile(file_id="f")),
]  # fmt: skip


@pytest.mark.parametrize(("block", "part"), MEDIA)
def test_media_become_parts(block: Message, part: Any) -> None:
    (item,) = read_messages(user(block))
    assert item.content[-1] == part


PLAIN = {"type": "text", "data": "D"}


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        (document(PLAIN), ["D"]),
        (document(PLAIN, title="T", context="C"), ["T\nC\n", "D"]),
        (document(PLAIN, title=None, context="C"), ["C\n", "D"]),
        (document(PLAIN, title=5), ["D"]),
        (document({"type": "content", "content": "D"}, title="T"), ["T\n", "D"]),
        (document({"type": "content", "content": [text("D"), text("E")]}), ["D", "E"]),
        ({"type": "search_result", "title": "T", "source": "S", "content": [text("D"), text("E")]}, ["T (S)\nD\nE"]),
    ],
)
def test_text_of_documents(block: Message, texts: list[str]) -> None:
    (item,) = read_messages(user(block))
    assert all(isinstance(part, InputText) for part in item.content)
    assert [part.text for part in item.content] == texts


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(None, None), ("", None), ("x", "x"), ([], None), ([text("x"), text("y")], "x\n\ny"), ([text("")], None)],
)
def test_system_text(sent: Any, expected: str | None) -> None:
    assert read_system(sent) == expected


LINE = "x-anthropic-billing-header: cc_version=2.1.330.ad8; cc_entrypoint=sdk-cli;"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([text(LINE), text("Be brief.")], "Be brief."),
        ([text(LINE)], None),
        ([text("Be brief."), text(LINE)], f"Be brief.\n\n{LINE}"),
        ([text(f"{LINE}\nBe brief.")], f"{LINE}\nBe brief."),
        (LINE, LINE),
    ],
)
def test_line_of_claude_code_is_no_part_of_the_prompt_as_a_first_block(sent: Any, expected: str | None) -> None:
    assert read_system(sent) == expected
    assert has_attribution(sent) == (expected in ("Be brief.", None))


def test_foreign_thinking_is_left_out_or_refused_with_a_remedy() -> None:
    foreign = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
    messages = [user(text("a")), assistant({**foreign, "signature": ""}, foreign, text("Hi.")), user(text("b"))]
    reader = ConversationReader(decrypt, drops_foreign=True)
    items = reader.read_messages(messages)
    assert not [item for item in items if isinstance(item, InputReasoning)] and len(items) == 3
    assert reader.dropped == ["messages[1].content[0]", "messages[1].content[1]"]
    with pytest.raises(
        ApiError, match=r"messages\[1\].content\[0\].signature.*Remove the block, or set .*'drop_block'"
    ):
        ConversationReader(decrypt).read_messages(messages)


def test_system_text_has_no_media() -> None:
    with pytest.raises(ApiError) as caught:
        read_system([text("x"), PNG])
    assert summarize_error(caught.value) == (400, "invalid_value", "system[1].type")
