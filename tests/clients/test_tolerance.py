"""Requests as real clients send them: what they send back of an earlier reply is accepted and reaches the prompt."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.sdk_helpers import Json, events, overhear, post, sdk
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve
from tests.snapshots.cases import PATCH, TOOLS, WEATHER

QUESTION = {"role": "user", "content": "How is the weather in Oslo?"}
THOUGHT, WORDS, ARGUMENTS = "Look it up.", "One moment.", '{"city": "Oslo"}'
FIRST = f'<think>\n{THOUGHT}\n</think>\n\n{WORDS}\n\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
OUTPUT = {"type": "function_call_output", "output": "12 degrees and rain"}
SCRIPT = [
    {"name": "second turn", "when": ["12 degrees"], "output": ["It is 12 degrees in Oslo."]},
    {"name": "first turn", "when": ["How is the weather"], "output": [FIRST]},
    {"name": "anything else", "output": ["All right."]},
]


class Talk:
    """A server and what its model was shown."""

    def __init__(self, served: RunningServer) -> None:
        self.served, self.prompts = served, overhear(served)

    def first(self, **more: Any) -> Json:
        """The first turn, not streamed: reasoning, a message and a call."""
        reply = post(self.url, json={"model": "scripted", "input": [QUESTION], "tools": TOOLS} | more)
        response: Json = reply.json()
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        return response

    def streamed(self, **more: Any) -> Json:
        """The same, streamed."""
        body = {"model": "scripted", "input": [QUESTION], "tools": TOOLS, "stream": True}
        return check(events(post(self.url, json=body | more).content))

    def second(self, items: list[Json], **more: Any) -> Json:
        """The second turn, with the tool's output behind `items`. It is accepted, and the model saw all of it."""
        reply = post(self.url, json={"model": "scripted", "input": items, "tools": TOOLS} | more)
        assert reply.status_code == 200, reply.text
        response: Json = reply.json()
        assert response["output"][-1]["content"][0]["text"] == "It is 12 degrees in Oslo."
        prompt = self.prompts[-1]
        for said in (QUESTION["content"], WORDS, "get_weather", "Oslo", "12 degrees and rain"):
            assert said in prompt, f"{said} is missing from the prompt"
        assert prompt.count(WORDS) == 1
        return response

    @property
    def url(self) -> str:
        return f"{self.served.url}/responses"


@pytest.fixture(scope="module")
def serving() -> Iterator[RunningServer]:
    with serve(scripted_registry(SCRIPT)) as served:
        yield served


@pytest.fixture
def talk(serving: RunningServer) -> Talk:
    return Talk(serving)


def parts(response: Json) -> tuple[Json, Json, Json, Json]:
    """Reasoning, message, call, and the output that answers the call."""
    thought, message, call = response["output"]
    return thought, message, call, OUTPUT | {"call_id": call["call_id"]}


def nulls(item: Json, *keys: str) -> Json:
    return item | {key: item.get(key) for key in keys}


# AI SDK


@pytest.mark.parametrize("streamed", [False, True])
def test_references_and_calls_without_an_id_as_the_ai_sdk_sends_them(talk: Talk, streamed: bool) -> None:
    thought, message, call, output = parts(talk.streamed() if streamed else talk.first())
    items = [
        QUESTION,
        {"type": "item_reference", "id": thought["id"]},
        {"type": "item_reference", "id": message["id"]},
        {"type": "function_call", "call_id": call["call_id"], "name": call["name"], "arguments": call["arguments"]},
        output,
    ]
    talk.second(items)
    bare = [{"id": item["id"]} if item.get("type") == "item_reference" else item for item in items]
    talk.second(bare)


def test_reasoning_without_content_or_status_as_the_ai_sdk_sends_it_unstored(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first(store=False, include=["reasoning.encrypted_content"]))
    assert thought["encrypted_content"]
    for sealed in (thought["encrypted_content"], None):
        told = {"type": "reasoning", "id": thought["id"], "summary": [], "encrypted_content": sealed}
        spoken = {"role": "assistant", "id": message["id"], "content": message["content"]}
        talk.second([QUESTION, told, spoken, call, output], store=False)
        del told["encrypted_content"]
        talk.second([QUESTION, told, spoken, call, output], store=False)


def test_strict_false_on_tools(talk: Talk) -> None:
    assert talk.first(tools=[WEATHER | {"strict": False}])["tools"][0]["strict"] is False


# openai-agents


def test_an_empty_include_and_whole_items_as_openai_agents_sends_them(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first(include=[]))
    assert message["content"][0]["logprobs"] == [] and message["status"] == call["status"] == "completed"
    talk.second([QUESTION, thought, message, call, output], include=[])


def test_log_probabilities_that_come_back_are_accepted(talk: Talk) -> None:
    first = talk.first(include=["message.output_text.logprobs"], top_logprobs=2)
    thought, message, call, output = parts(first)
    assert message["content"][0]["logprobs"][0]["top_logprobs"]
    talk.second([QUESTION, thought, message, call, output], include=["message.output_text.logprobs"])


# pydantic-ai


def test_null_seals_calls_without_an_id_and_bare_texts_as_pydantic_ai_sends_them(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first())
    del call["id"]
    talk.second(
        [
            QUESTION,
            thought | {"encrypted_content": None, "content": None},
            {"role": "assistant", "content": message["content"][0]["text"]},
            call,
            output,
        ]
    )


def test_every_tool_choice_is_echoed_as_it_was_sent(talk: Talk) -> None:
    named = {"type": "function", "name": "get_weather"}
    for choice in ("required", named, {"type": "allowed_tools", "mode": "auto", "tools": [named]}):
        assert talk.first(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)["tool_choice"] == choice


# openai Python and Node


def test_every_null_that_model_dump_writes(talk: Talk) -> None:
    with sdk(talk.served) as (client, _):
        first = client.responses.create(model="scripted", input=[QUESTION], tools=TOOLS)
        dumped = [item.model_dump(mode="json", warnings=False) for item in first.output]
        call = dumped[-1]
        assert call["namespace"] is None and "caller" in call, "the SDK spells the nulls out"
        talk.second([QUESTION, *dumped, OUTPUT | {"call_id": call["call_id"]}])
        parsed = client.responses.parse(model="scripted", input=[QUESTION], tools=TOOLS)
        dumped = [item.model_dump(mode="json", warnings=False) for item in parsed.output]
        assert "parsed_arguments" in dumped[-1]
        talk.second([QUESTION, *dumped, OUTPUT | {"call_id": dumped[-1]["call_id"]}])


def test_parsed_arguments_inside_a_call_as_the_node_sdk_sends_them(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first())
    for parsed in ({"city": "Oslo"}, None, "x"):
        talk.second([QUESTION, thought, message, call | {"parsed_arguments": parsed}, output])


def test_objects_of_the_sdk_can_be_sent_back_as_they_are(talk: Talk) -> None:
    with sdk(talk.served) as (client, _):
        first = client.responses.create(model="scripted", input=[QUESTION], tools=TOOLS)
        output = OUTPUT | {"call_id": first.output[-1].call_id}
        second = client.responses.create(model="scripted", input=[QUESTION, *first.output, output], tools=TOOLS)
    assert second.output_text == "It is 12 degrees in Oslo."


# LangChain


def test_calls_without_a_status_and_tools_without_strict_as_langchain_sends_them(talk: Talk) -> None:
    first = talk.first()
    assert "strict" not in WEATHER and first["tools"][0]["strict"] is None
    thought, message, call, output = parts(first)
    del call["status"]
    talk.second([QUESTION, thought, message, call, output], parallel_tool_calls=False)


# Everybody


@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
@pytest.mark.parametrize("content", ["be brief", [{"type": "input_text", "text": "be brief"}]])
def test_messages_with_and_without_type_as_text_or_parts(talk: Talk, kind: Json, content: Any) -> None:
    for role in ("user", "system", "developer"):
        body = {"model": "scripted", "input": [kind | {"role": role, "content": content}, QUESTION]}
        assert post(talk.url, json=body).json()["status"] == "completed"
        assert "be brief" in talk.prompts[-1]


@pytest.mark.parametrize(
    "told",
    ["12 degrees and rain", [{"type": "input_text", "text": "12 degrees and rain"}]],
    ids=["text", "parts"],
)
def test_a_tools_output_as_text_or_parts(talk: Talk, told: Any) -> None:
    thought, message, call, output = parts(talk.first())
    talk.second([QUESTION, thought, message, call, output | {"output": told}])
    talk.second([QUESTION, thought, message, call, output | {"output": told, "id": None, "status": None}])


def test_a_tools_output_with_a_picture_is_accepted(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first())
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    words = {"type": "input_text", "text": "12 degrees and rain"}
    talk.second([QUESTION, thought, message, call, output | {"output": [words, picture]}])
    assert "base64" not in talk.prompts[-1]


def test_custom_calls_come_back_with_their_output(talk: Talk) -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "12 degrees"}
    for extra in ({}, {"status": "completed", "namespace": None, "caller": None}):
        body = {"model": "scripted", "input": [QUESTION, call | extra, output], "tools": [PATCH]}
        assert post(talk.url, json=body).json()["status"] == "completed"
        assert "*** Begin" in talk.prompts[-1]


def test_schemas_as_zod_and_pydantic_write_them(talk: Talk) -> None:
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
    reply = post(talk.url, json={"model": "scripted", "input": "x", "tools": tools}).json()
    assert [tool["parameters"] for tool in reply["tools"]] == [zod, pydantic, None]


def test_nulls_on_every_optional_field_of_a_request(talk: Talk) -> None:
    empty = """instructions max_output_tokens max_tool_calls metadata previous_response_id prompt reasoning
        service_tier temperature text tool_choice tools top_logprobs top_p truncation user include store background
        parallel_tool_calls stream stream_options conversation safety_identifier prompt_cache_key""".split()
    reply = post(talk.url, json={"model": "scripted", "input": "x"} | dict.fromkeys(empty))
    assert reply.status_code == 200, reply.text
    assert reply.json()["store"] is True


def test_a_reply_can_be_sent_back_through_chat_with_every_key_that_clients_keep(talk: Talk) -> None:
    url = f"{talk.served.url}/chat/completions"
    tool = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    body = {"model": "scripted", "messages": [QUESTION], "tools": [tool]}
    said = post(url, json=body).json()["choices"][0]["message"]
    assert said["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    answer = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "12 degrees and rain"}
    for change in (
        {},
        {"content": None},
        {"content": ""},
        {"content": [{"type": "text", "text": WORDS}]},
        {"refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"reasoning_content": THOUGHT, "reasoning": None},
    ):
        again = post(url, json=body | {"messages": [QUESTION, said | change, answer]})
        assert again.status_code == 200, again.text
        assert again.json()["choices"][0]["message"]["content"] == "It is 12 degrees in Oslo."
        assert "12 degrees and rain" in talk.prompts[-1] and "get_weather" in talk.prompts[-1]


def test_the_sdks_chat_message_can_be_sent_back_as_it_is(talk: Talk) -> None:
    tool: Any = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    question: Any = QUESTION
    with sdk(talk.served) as (client, _):
        ask = {"model": "scripted", "tools": [tool]}
        said = client.chat.completions.create(messages=[question], **ask).choices[0].message  # type: ignore[call-overload]
        for again in (said, said.model_dump(warnings=False)):
            answer = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "12 degrees"}
            reply = client.chat.completions.create(messages=[question, again, answer], **ask)  # type: ignore[call-overload]
            assert reply.choices[0].message.content == "It is 12 degrees in Oslo."


# What is wrong in the history is the model's doing, or another server's: it must not stop the conversation


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
def test_arguments_that_do_not_parse_are_shown_to_the_model_and_break_nothing(talk: Talk, arguments: str) -> None:
    thought, message, call, output = parts(talk.first())
    talk.second([QUESTION, thought, message, call | {"arguments": arguments, "status": "incomplete"}, output])
    said = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    history = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [said]}]
    answer = {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"}
    body = {"model": "scripted", "messages": [*history, answer]}
    assert post(f"{talk.served.url}/chat/completions", json=body).status_code == 200


def test_items_of_tools_that_ran_elsewhere_are_accepted(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first())
    foreign = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "s1", "status": "completed", "action": {}},
    ]
    talk.second([QUESTION, thought, message, *foreign, call, output])


def test_ids_of_any_shape_are_accepted_and_never_come_back_on_new_items(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first())
    renamed = [thought | {"id": "x"}, message | {"id": "msg-1/é"}, call | {"id": "call_same", "call_id": "call_same"}]
    response = talk.second([QUESTION, *renamed, output | {"call_id": "call_same", "id": "call_same"}])
    assert response["output"][0]["id"].startswith("msg_")


def test_instructions_and_developer_items_reach_the_model_as_one_system_message(talk: Talk) -> None:
    late = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Mind the gap."}]}
    body = {
        "model": "scripted",
        "instructions": "Be kind.",
        "input": [late, QUESTION, {"role": "system", "content": "Last."}],
    }
    assert post(talk.url, json=body).json()["status"] == "completed"
    prompt = talk.prompts[-1]
    assert prompt.count("<|im_start|>system") == 1 and prompt.startswith("<|im_start|>system")
    assert prompt.index("Be kind.") < prompt.index("Mind the gap.") < prompt.index("Last.") < prompt.index("How is")


def test_instructions_of_an_earlier_turn_do_not_leak_into_the_next(talk: Talk) -> None:
    thought, message, call, output = parts(talk.first(instructions="Speak like a pirate."))
    references = [{"type": "item_reference", "id": item["id"]} for item in (thought, message, call)]
    talk.second([QUESTION, *references, output])
    assert "pirate" not in talk.prompts[-1]


def test_a_picture_in_the_history_is_named_and_not_pasted(talk: Talk) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * 5_000, "detail": "auto"}
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64," + "QUJD" * 5_000}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, picture, paper]}
    reply = post(talk.url, json={"model": "scripted", "input": [asked]})
    assert reply.json()["status"] == "completed"
    assert "QUJD" not in talk.prompts[-1] and "a.pdf" in talk.prompts[-1]
    assert json.loads(reply.content)["usage"]["input_tokens"] < 1_000
