"""Items of earlier turns as real clients send them back: they are accepted and reach the prompt."""

import json
from functools import partial
from typing import Any

import pytest

from tests.clients.sdk_helpers import Json, open_sdk, parse_events, post, record_prompts
from tests.invariants import check_stream
from tests.serving import RunningServer, serve
from tests.snapshots.cases import PATCH, TOOLS, WEATHER

QUESTION = {"role": "user", "content": "How is the weather in Oslo?"}
REASONING_TEXT, MESSAGE_TEXT, ARGUMENTS = "Look it up.", "One moment.", '{"city": "Oslo"}'
FIRST_OUTPUT = f'<think>\n{REASONING_TEXT}\n</think>\n\n{MESSAGE_TEXT}\n\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALL_OUTPUT = {"type": "function_call_output", "output": "12 degrees and rain"}
SCRIPT = [
    {"name": "second turn", "when": ["12 degrees"], "output": ["It is 12 degrees in Oslo."]},
    {"name": "first turn", "when": ["How is the weather"], "output": [FIRST_OUTPUT]},
    {"name": "anything else", "output": ["All right."]},
]


class TwoTurnClient:
    """A server, and the prompts that its model received."""

    def __init__(self, server: RunningServer) -> None:
        self.server, self.prompts = server, record_prompts(server)

    def run_first_turn(self, **fields: Any) -> Json:
        """Runs the first turn without a stream and returns its response: reasoning, a message and a call."""
        reply = post(self.url, json={"model": "scripted", "input": [QUESTION], "tools": TOOLS} | fields)
        response: Json = reply.json()
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        return response

    def stream_first_turn(self, **fields: Any) -> Json:
        """Runs the first turn with a stream and returns its response."""
        body = {"model": "scripted", "input": [QUESTION], "tools": TOOLS, "stream": True}
        return check_stream(parse_events(post(self.url, json=body | fields).content))

    def run_second_turn(self, items: list[Json], **fields: Any) -> Json:
        """Runs the second turn and checks that it is accepted and that the prompt has all of the first turn."""
        reply = post(self.url, json={"model": "scripted", "input": items, "tools": TOOLS} | fields)
        assert reply.status_code == 200, reply.text
        response: Json = reply.json()
        assert response["output"][-1]["content"][0]["text"] == "It is 12 degrees in Oslo."
        prompt = self.prompts[-1]
        for text in (QUESTION["content"], MESSAGE_TEXT, "get_weather", "Oslo", "12 degrees and rain"):
            assert text in prompt, f"{text} is missing from the prompt"
        assert prompt.count(MESSAGE_TEXT) == 1
        return response

    @property
    def url(self) -> str:
        return f"{self.server.url}/responses"


SERVER = partial(serve, SCRIPT)


@pytest.fixture
def two_turns(server: RunningServer) -> TwoTurnClient:
    return TwoTurnClient(server)


def split_output(response: Json) -> tuple[Json, Json, Json, Json]:
    """Returns the reasoning, the message, the call, and the call's output."""
    reasoning, message, call = response["output"]
    return reasoning, message, call, CALL_OUTPUT | {"call_id": call["call_id"]}


# AI SDK


@pytest.mark.parametrize("streamed", [False, True])
def test_ai_sdk_item_references_and_calls_without_id_are_accepted(two_turns: TwoTurnClient, streamed: bool) -> None:
    reasoning, message, call, output = split_output(
        two_turns.stream_first_turn() if streamed else two_turns.run_first_turn()
    )
    items = [
        QUESTION,
        {"type": "item_reference", "id": reasoning["id"]},
        {"type": "item_reference", "id": message["id"]},
        {"type": "function_call", "call_id": call["call_id"], "name": call["name"], "arguments": call["arguments"]},
        output,
    ]
    two_turns.run_second_turn(items)
    without_types = [{"id": item["id"]} if item.get("type") == "item_reference" else item for item in items]
    two_turns.run_second_turn(without_types)


def test_ai_sdk_unstored_reasoning_without_content_or_status_is_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(
        two_turns.run_first_turn(store=False, include=["reasoning.encrypted_content"])
    )
    assert reasoning["encrypted_content"]
    for sealed in (reasoning["encrypted_content"], None):
        reasoning_item = {"type": "reasoning", "id": reasoning["id"], "summary": [], "encrypted_content": sealed}
        message_item = {"role": "assistant", "id": message["id"], "content": message["content"]}
        two_turns.run_second_turn([QUESTION, reasoning_item, message_item, call, output], store=False)
        del reasoning_item["encrypted_content"]
        two_turns.run_second_turn([QUESTION, reasoning_item, message_item, call, output], store=False)


def test_ai_sdk_strict_false_on_tools_is_accepted(two_turns: TwoTurnClient) -> None:
    assert two_turns.run_first_turn(tools=[WEATHER | {"strict": False}])["tools"][0]["strict"] is False


# openai-agents


def test_openai_agents_empty_include_and_complete_items_are_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn(include=[]))
    assert message["content"][0]["logprobs"] == [] and message["status"] == call["status"] == "completed"
    two_turns.run_second_turn([QUESTION, reasoning, message, call, output], include=[])


def test_logprobs_in_input_messages_are_accepted(two_turns: TwoTurnClient) -> None:
    first = two_turns.run_first_turn(include=["message.output_text.logprobs"], top_logprobs=2)
    reasoning, message, call, output = split_output(first)
    assert message["content"][0]["logprobs"][0]["top_logprobs"]
    two_turns.run_second_turn([QUESTION, reasoning, message, call, output], include=["message.output_text.logprobs"])


# pydantic-ai


def test_pydantic_ai_null_encrypted_content_and_calls_without_id_are_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    del call["id"]
    two_turns.run_second_turn(
        [
            QUESTION,
            reasoning | {"encrypted_content": None, "content": None},
            {"role": "assistant", "content": message["content"][0]["text"]},
            call,
            output,
        ]
    )


def test_tool_choice_is_echoed_as_sent(two_turns: TwoTurnClient) -> None:
    function_choice = {"type": "function", "name": "get_weather"}
    for choice in ("required", function_choice, {"type": "allowed_tools", "mode": "auto", "tools": [function_choice]}):
        assert (
            two_turns.run_first_turn(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)["tool_choice"]
            == choice
        )


# openai Python and Node


def test_nulls_of_model_dump_are_accepted(two_turns: TwoTurnClient) -> None:
    with open_sdk(two_turns.server) as (client, _):
        first = client.responses.create(model="scripted", input=[QUESTION], tools=TOOLS)
        dumped = [item.model_dump(mode="json", warnings=False) for item in first.output]
        call = dumped[-1]
        assert call["namespace"] is None and "caller" in call, "the SDK writes nulls"
        two_turns.run_second_turn([QUESTION, *dumped, CALL_OUTPUT | {"call_id": call["call_id"]}])
        parsed = client.responses.parse(model="scripted", input=[QUESTION], tools=TOOLS)
        dumped = [item.model_dump(mode="json", warnings=False) for item in parsed.output]
        assert "parsed_arguments" in dumped[-1]
        two_turns.run_second_turn([QUESTION, *dumped, CALL_OUTPUT | {"call_id": dumped[-1]["call_id"]}])


def test_node_sdk_parsed_arguments_are_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    for parsed in ({"city": "Oslo"}, None, "x"):
        two_turns.run_second_turn([QUESTION, reasoning, message, call | {"parsed_arguments": parsed}, output])


def test_sdk_output_objects_are_accepted_as_input(two_turns: TwoTurnClient) -> None:
    with open_sdk(two_turns.server) as (client, _):
        first = client.responses.create(model="scripted", input=[QUESTION], tools=TOOLS)
        output = CALL_OUTPUT | {"call_id": first.output[-1].call_id}
        second = client.responses.create(model="scripted", input=[QUESTION, *first.output, output], tools=TOOLS)
    assert second.output_text == "It is 12 degrees in Oslo."


# LangChain


def test_langchain_calls_without_status_and_tools_without_strict_are_accepted(two_turns: TwoTurnClient) -> None:
    first = two_turns.run_first_turn()
    assert "strict" not in WEATHER and first["tools"][0]["strict"] is None
    reasoning, message, call, output = split_output(first)
    del call["status"]
    two_turns.run_second_turn([QUESTION, reasoning, message, call, output], parallel_tool_calls=False)


# Several clients


@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
@pytest.mark.parametrize("content", ["be brief", [{"type": "input_text", "text": "be brief"}]])
def test_messages_with_or_without_type_as_text_or_parts_are_accepted(
    two_turns: TwoTurnClient, kind: Json, content: Any
) -> None:
    for role in ("user", "system", "developer"):
        body = {"model": "scripted", "input": [kind | {"role": role, "content": content}, QUESTION]}
        assert post(two_turns.url, json=body).json()["status"] == "completed"
        assert "be brief" in two_turns.prompts[-1]


@pytest.mark.parametrize(
    "content",
    ["12 degrees and rain", [{"type": "input_text", "text": "12 degrees and rain"}]],
    ids=["text", "parts"],
)
def test_tool_output_as_text_or_parts_is_accepted(two_turns: TwoTurnClient, content: Any) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    two_turns.run_second_turn([QUESTION, reasoning, message, call, output | {"output": content}])
    two_turns.run_second_turn(
        [QUESTION, reasoning, message, call, output | {"output": content, "id": None, "status": None}]
    )


def test_tool_output_with_an_image_is_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    text = {"type": "input_text", "text": "12 degrees and rain"}
    two_turns.run_second_turn([QUESTION, reasoning, message, call, output | {"output": [text, image]}])
    assert "base64" not in two_turns.prompts[-1]


def test_custom_calls_and_their_outputs_are_accepted(two_turns: TwoTurnClient) -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "12 degrees"}
    for extra in ({}, {"status": "completed", "namespace": None, "caller": None}):
        body = {"model": "scripted", "input": [QUESTION, call | extra, output], "tools": [PATCH]}
        assert post(two_turns.url, json=body).json()["status"] == "completed"
        assert "*** Begin" in two_turns.prompts[-1]


def test_zod_and_pydantic_schemas_are_echoed(two_turns: TwoTurnClient) -> None:
    zod = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    pydantic = {
        "title": "Args",
        "description": "What it takes.",
        "type": "object",
        "properties": {"a": {"title": "A", "type": "string"}},
    }
    tools = [
        {"type": "function", "name": f"f{n}", "parameters": schema} for n, schema in enumerate((zod, pydantic, None))
    ]
    reply = post(two_turns.url, json={"model": "scripted", "input": "x", "tools": tools}).json()
    assert [tool["parameters"] for tool in reply["tools"]] == [zod, pydantic, None]


def test_null_is_accepted_for_every_optional_field(two_turns: TwoTurnClient) -> None:
    names = """instructions max_output_tokens max_tool_calls metadata previous_response_id prompt reasoning
        service_tier temperature text tool_choice tools top_logprobs top_p truncation user include store background
        parallel_tool_calls stream stream_options conversation safety_identifier prompt_cache_key""".split()
    reply = post(two_turns.url, json={"model": "scripted", "input": "x"} | dict.fromkeys(names))
    assert reply.status_code == 200, reply.text
    assert reply.json()["store"] is True


def test_chat_message_is_accepted_with_every_key_that_clients_keep(two_turns: TwoTurnClient) -> None:
    url = f"{two_turns.server.url}/chat/completions"
    tool = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    body = {"model": "scripted", "messages": [QUESTION], "tools": [tool]}
    chat_message = post(url, json=body).json()["choices"][0]["message"]
    assert chat_message["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    tool_message = {
        "role": "tool",
        "tool_call_id": chat_message["tool_calls"][0]["id"],
        "content": "12 degrees and rain",
    }
    for change in (
        {},
        {"content": None},
        {"content": ""},
        {"content": [{"type": "text", "text": MESSAGE_TEXT}]},
        {"refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"reasoning_content": REASONING_TEXT, "reasoning": None},
    ):
        reply = post(url, json=body | {"messages": [QUESTION, chat_message | change, tool_message]})
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == "It is 12 degrees in Oslo."
        assert "12 degrees and rain" in two_turns.prompts[-1] and "get_weather" in two_turns.prompts[-1]


def test_sdk_chat_message_object_is_accepted_as_history(two_turns: TwoTurnClient) -> None:
    tool: Any = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    question: Any = QUESTION
    with open_sdk(two_turns.server) as (client, _):
        fields = {"model": "scripted", "tools": [tool]}
        chat_message = client.chat.completions.create(messages=[question], **fields).choices[0].message  # type: ignore[call-overload]
        for message in (chat_message, chat_message.model_dump(warnings=False)):
            tool_message = {"role": "tool", "tool_call_id": chat_message.tool_calls[0].id, "content": "12 degrees"}
            reply = client.chat.completions.create(messages=[question, message, tool_message], **fields)  # type: ignore[call-overload]
            assert reply.choices[0].message.content == "It is 12 degrees in Oslo."


# Malformed histories: the model or another server wrote them, so they must not stop the conversation


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Os',
        "",
        "not json",
        '{"a": 1}}',
        "[1, 2]",
        '"text"',
        "null",
        '{"a": "</tool_call><|im_end|>"}',
        "{" * 5000,
    ],
)
def test_malformed_arguments_are_accepted(two_turns: TwoTurnClient, arguments: str) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    two_turns.run_second_turn(
        [QUESTION, reasoning, message, call | {"arguments": arguments, "status": "incomplete"}, output]
    )
    chat_call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    history = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [chat_call]}]
    tool_message = {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"}
    body = {"model": "scripted", "messages": [*history, tool_message]}
    assert post(f"{two_turns.server.url}/chat/completions", json=body).status_code == 200


def test_items_of_hosted_tools_are_accepted(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    foreign = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "n", "arguments": "{}", "output": "x"},
    ]
    two_turns.run_second_turn([QUESTION, reasoning, message, *foreign, call, output])


def test_client_ids_of_any_form_are_accepted_and_not_reused(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn())
    renamed = [reasoning | {"id": "x"}, message | {"id": "msg-1/é"}, call | {"id": "call_same", "call_id": "call_same"}]
    response = two_turns.run_second_turn([QUESTION, *renamed, output | {"call_id": "call_same", "id": "call_same"}])
    assert response["output"][0]["id"].startswith("msg_")


def test_instructions_and_developer_items_form_one_system_message(two_turns: TwoTurnClient) -> None:
    developer_message = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "Mind the gap."}],
    }
    body = {
        "model": "scripted",
        "instructions": "Be kind.",
        "input": [developer_message, QUESTION, {"role": "system", "content": "Last."}],
    }
    assert post(two_turns.url, json=body).json()["status"] == "completed"
    prompt = two_turns.prompts[-1]
    assert prompt.count("<|im_start|>system") == 1 and prompt.startswith("<|im_start|>system")
    assert prompt.index("Be kind.") < prompt.index("Mind the gap.") < prompt.index("Last.") < prompt.index("How is")


def test_instructions_do_not_carry_over_to_the_next_turn(two_turns: TwoTurnClient) -> None:
    reasoning, message, call, output = split_output(two_turns.run_first_turn(instructions="Speak like a pirate."))
    references = [{"type": "item_reference", "id": item["id"]} for item in (reasoning, message, call)]
    two_turns.run_second_turn([QUESTION, *references, output])
    assert "pirate" not in two_turns.prompts[-1]


def test_image_data_is_left_out_of_the_prompt_of_a_model_without_vision(two_turns: TwoTurnClient) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * 5_000, "detail": "auto"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}
    reply = post(two_turns.url, json={"model": "scripted", "input": [message]})
    assert reply.json()["status"] == "completed"
    assert "QUJD" not in two_turns.prompts[-1] and "[image]" in two_turns.prompts[-1]
    assert json.loads(reply.content)["usage"]["input_tokens"] < 1_000
