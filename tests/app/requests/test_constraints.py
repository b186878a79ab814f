"""Structured output over HTTP, from a model with random weights: JSON schemas, grammars, and required tool calls.

`ANTIPHON_TEST_FULL=1` tests 200 schemas and 30 grammars, the schemas with the embedded model, too, and prints the counts.
"""

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import jsonschema
import openai
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detection import detect
from tests.counts import FULL_COUNTS
from tests.serving import RunningServer, serve

NUM_SCHEMAS, NUM_GRAMMARS = (200, 30) if FULL_COUNTS else (3, 4)
WORD_SCHEMA: dict[str, Any] = {"type": "string", "maxLength": 8}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serves two models: `antiphon`, the embedded one, and `ignorant`, the same architecture with random weights."""
    folder = tmp_path_factory.mktemp("ignorant") / "model"
    shutil.copytree(MODEL_DIR, folder)
    torch.manual_seed(1)
    model: Any = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(MODEL_DIR), dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    models = [load_served_model("antiphon", MODEL_DIR), load_served_model("ignorant", folder)]
    with serve(ModelRegistry(models)) as server:
        yield server


def load_served_model(name: str, folder: Path) -> ServedModel:
    engine = ProcessEngine(folder, EngineOptions(threads=1, kv_cache_gib=0.2))
    return ServedModel(names=(name,), engine=engine, format=detect.load_format(folder, None).format, created=1)


def create_response(client: openai.OpenAI, prompt: str = "Hi", model: str = "ignorant", **options: Any) -> Any:
    options = {"temperature": 1.0, "max_output_tokens": 400, "reasoning": {"effort": "none"}} | options
    return client.responses.create(model=model, input=prompt, **options)


def json_schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}


def random_schema(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    """Returns a random schema whose values are bounded in length, except those of recursive schemas."""
    kinds = ["word", "number", "enum", "pattern", "const"] + ["object", "array", "union", "recursive"] * bool(depth)
    kind = dice.choice(kinds)
    if kind == "object":
        names = dice.sample(["a", "b", "c", "some name", "ü"], dice.randint(1, 3))
        properties = {name: random_schema(dice, depth - 1) for name in names}
        required = [name for name in names if dice.random() < 0.7]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(dice, depth - 1), "minItems": 1, "maxItems": 2}
    if kind == "union":
        return {"anyOf": [random_schema(dice, depth - 1), {"type": "null"}]}
    if kind == "recursive":
        node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
        return {
            "$defs": {"node": {**node, "required": ["next"], "additionalProperties": False}},
            "$ref": "#/$defs/node",
        }
    return {
        "word": WORD_SCHEMA,
        "number": {"type": "integer", "minimum": -5, "maximum": 500},
        "enum": {"enum": ["red", "green", 7, None]},
        "pattern": {"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"},
        "const": {"const": {"fixed": [1, "two"]}},
    }[kind]


def lift_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Moves all `$defs` to the top level, where references look for them."""
    definitions: dict[str, Any] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            definitions.update(value.get("$defs", {}))
            return {key: walk(inner) for key, inner in value.items() if key != "$defs"}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    lifted = walk(schema)
    return {**lifted, "$defs": definitions} if definitions else lifted


@pytest.mark.parametrize("model", ["ignorant", *(["antiphon"] if FULL_COUNTS else [])])
@pytest.mark.timeout(300 + 10 * NUM_SCHEMAS, func_only=True)  # the first test of the module also pays for the server
def test_json_output_fits_its_schema(client: openai.OpenAI, model: str) -> None:
    dice, completed, bounded, incomplete = random.Random(4), 0, 0, 0
    for number in range(NUM_SCHEMAS):
        body = {"type": "object", "properties": {"it": lift_definitions(random_schema(dice))}, "required": ["it"]}
        schema = lift_definitions({**body, "additionalProperties": False})
        reply = create_response(client, model=model, text=json_schema_format(schema), extra_body={"seed": number})
        is_bounded = "$defs" not in schema  # a recursive value has no bound
        bounded += is_bounded
        incomplete += is_bounded and reply.status != "completed"
        if reply.status == "completed":
            completed += 1
            jsonschema.validate(json.loads(reply.output_text), schema)
        else:
            assert reply.incomplete_details.reason == "max_output_tokens"
    print(
        f"{model}: {completed} of {NUM_SCHEMAS} complete, all valid; of {bounded} bounded ones {bounded - incomplete}"
    )
    assert bounded and completed, "the sample has answers that can be checked"
    assert incomplete <= 0.05 * bounded


def test_open_object_schema_gets_only_declared_properties(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": WORD_SCHEMA, "b": {"enum": [1, 2]}}, "required": ["a"]}
    tool = {"type": "function", "name": "f", "parameters": schema}
    for seed in range(4):
        reply = create_response(client, text=json_schema_format(schema), extra_body={"seed": seed})
        assert reply.status == "completed" and json.loads(reply.output_text).keys() <= {"a", "b"}
        reply = create_response(
            client, tools=[tool], tool_choice="required", parallel_tool_calls=False, extra_body={"seed": seed}
        )
        assert reply.status == "completed" and json.loads(reply.output[0].arguments).keys() <= {"a", "b"}


PATTERNS = ["[a-z]{2,5}", "(yes|no)", "[0-9]{4}-[0-9]{2}", "a{3}b?", "(x[yz]){1,4}", "[A-Z][a-z]{0,3}"]
LARK_GRAMMARS = [
    ('start: "yes" | "no"', "yes|no"),
    ('start: "[" WORD ("," WORD)? "]"\nWORD: /[a-f]{1,4}/', r"\[[a-f]{1,4}(,[a-f]{1,4})?\]"),
    ("start: a b\na: /[0-3]/\nb: /[4-9]{2}/", "[0-3][4-9]{2}"),
]


@pytest.mark.timeout(300 + 10 * NUM_GRAMMARS, func_only=True)
def test_custom_tool_input_matches_its_grammar(client: openai.OpenAI) -> None:
    dice = random.Random(5)
    for number in range(NUM_GRAMMARS):
        if number % 2:
            definition, pattern = dice.choice(LARK_GRAMMARS)
            syntax = "lark"
        else:
            definition = pattern = dice.choice(PATTERNS)
            syntax = "regex"
        shape = {"type": "grammar", "syntax": syntax, "definition": definition}
        tool = {"type": "custom", "name": "write", "format": shape}
        reply = create_response(
            client, tools=[tool], tool_choice="required", parallel_tool_calls=False, extra_body={"seed": number}
        )
        assert reply.status == "completed", definition
        (call,) = reply.output
        assert call.type == "custom_tool_call" and re.fullmatch(pattern, call.input), (definition, call.input)


TOOLS: list[Any] = [
    {
        "type": "function",
        "name": name,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"word": WORD_SCHEMA, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["word", "count"],
            "additionalProperties": False,
        },
    }
    for name in ("first", "second", "third")
]


@pytest.mark.parametrize(
    ("tool_choice", "names"),
    [
        ("required", {"first", "second", "third"}),
        ({"type": "function", "name": "second"}, {"second"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": n} for n in ("first", "third")]},
            {"first", "third"},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["ignorant", "antiphon"])
def test_required_tool_call_is_generated(client: openai.OpenAI, model: str, tool_choice: Any, names: set[str]) -> None:
    for seed in range(4):
        reply = create_response(
            client,
            model=model,
            tools=TOOLS,
            tool_choice=tool_choice,
            parallel_tool_calls=False,
            extra_body={"seed": seed},
        )
        assert reply.status == "completed" and reply.to_dict()["tool_choice"] == tool_choice
        (call,) = [item for item in reply.output if item.type == "function_call"]
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), TOOLS[0]["parameters"])


def test_chosen_tool_of_a_namespace_is_called(client: openai.OpenAI) -> None:
    crew, jobs = ({"type": "namespace", "name": name, "description": "", "tools": TOOLS} for name in ("crew", "jobs"))
    choice: Any = {"type": "function", "name": "second", "namespace": "jobs"}
    reply = create_response(
        client,
        model="ignorant",
        tools=[crew, jobs],
        tool_choice=choice,
        parallel_tool_calls=False,
        extra_body={"seed": 1},
    )
    (call,) = [item for item in reply.output if item.type == "function_call"]
    assert (call.name, call.namespace) == ("second", "jobs")


def test_tool_choice_none_generates_no_call(client: openai.OpenAI) -> None:
    for seed in range(3):
        reply = create_response(
            client, tools=TOOLS, tool_choice="none", max_output_tokens=60, extra_body={"seed": seed}
        )
        assert all(item.type != "function_call" for item in reply.output)


def test_embedded_model_reasons_before_constrained_json(client: openai.OpenAI) -> None:
    body = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9999}},
        "required": ["sum"],
    }
    shape = json_schema_format({**body, "additionalProperties": False})
    reply = create_response(client, "What is 12 + 7?", model="antiphon", temperature=0, reasoning=None, text=shape)
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert isinstance(json.loads(reply.output_text)["sum"], int)


def test_json_object_format_and_chat_completions_spelling(client: openai.OpenAI) -> None:
    reply = create_response(client, model="antiphon", temperature=0, text={"format": {"type": "json_object"}})
    assert reply.status == "completed" and isinstance(json.loads(reply.output_text), dict)
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "blue"]}}}
    chat = client.chat.completions.create(
        model="ignorant", messages=[{"role": "user", "content": "Hi"}], response_format=shape, reasoning_effort="none"
    )
    assert json.loads(chat.choices[0].message.content or "") in ("red", "blue")
    tool: Any = {"type": "function", "function": {key: TOOLS[0][key] for key in ("name", "strict", "parameters")}}
    named: Any = {"type": "function", "function": {"name": "first"}}
    called = client.chat.completions.create(
        model="ignorant", messages=[{"role": "user", "content": "Hi"}], tools=[tool], tool_choice=named,
        reasoning_effort="none", parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = called.choices[0].message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), TOOLS[0]["parameters"])  # type: ignore[union-attr]


INVALID_CONSTRAINTS: list[tuple[dict[str, Any], str, str]] = [
    ({"text": json_schema_format({"$ref": "#/nowhere"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": json_schema_format({"$ref": "http://example.com/x.json"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": json_schema_format({"type": "string", "pattern": "(a"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": json_schema_format({"type": "rainbow"})}, "invalid_json_schema", "text.format.schema"),
    ({"tools": [{**TOOLS[0], "parameters": {"$ref": "#/no"}}]}, "invalid_function_parameters", "tools[0].parameters"),
]
INVALID_GRAMMARS = [
    ("regex", "(a"),
    ("regex", "(?<=a)b"),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("lark", "start: start"),
    ("lark", "start: nothing"),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
]
GRAMMAR_BOMBS = [  # with the status of a response of at most eight tokens
    ("regex", "(a{1,1000}){1,1000}b", "incomplete"),
    ("regex", "(.*a){30}", "incomplete"),
    ("lark", "\n".join([*(f"r{n}: r{n + 1} r{n + 1}" for n in range(60)), 'r60: "a"', "start: r0"]), "failed"),
]


def make_grammar_tool(syntax: str, text: str) -> dict[str, Any]:
    shape = {"type": "grammar", "syntax": syntax, "definition": text}
    return {"tools": [{"type": "custom", "name": "w", "format": shape}], "tool_choice": "required"}


INVALID_CONSTRAINTS += [
    (make_grammar_tool(*grammar), "invalid_grammar", "tools[0].format.definition") for grammar in INVALID_GRAMMARS
]


@pytest.mark.parametrize(("body", "code", "param"), INVALID_CONSTRAINTS, ids=range(len(INVALID_CONSTRAINTS)))
def test_invalid_constraint_is_rejected(client: openai.OpenAI, body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create_response(client, max_output_tokens=8, **body)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(("syntax", "definition", "status"), GRAMMAR_BOMBS, ids=range(len(GRAMMAR_BOMBS)))
def test_grammar_bomb_ends(client: openai.OpenAI, syntax: str, definition: str, status: str) -> None:
    """The response is limited by `max_output_tokens`, or fails when the grammar grows too large."""
    options = make_grammar_tool(syntax, definition) | {"max_output_tokens": 8, "extra_body": {"seed": 2}}
    assert create_response(client, **options).status == status
