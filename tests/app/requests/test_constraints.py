"""What a request was promised holds on any weights: served over HTTP by a model that knows nothing.

`ANTIPHON_TEST_FULL=1` asks 200 schemas and 30 grammars, and the embedded model, too; the shares are printed.
"""

import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import jsonschema
import openai
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony import detect
from tests.counts import FULL_COUNTS
from tests.serving import RunningServer, serve

SCHEMAS, GRAMMARS = (200, 30) if FULL_COUNTS else (3, 4)
WORD: dict[str, Any] = {"type": "string", "maxLength": 8}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models: `antiphon`, the embedded one, and `ignorant`, the same with random weights."""
    folder = tmp_path_factory.mktemp("ignorant") / "model"
    shutil.copytree(MODEL_DIR, folder)
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL_DIR), dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    models = [one("antiphon", MODEL_DIR), one("ignorant", folder)]
    with serve(ModelRegistry(models)) as running:
        yield running


def one(name: str, folder: Path) -> ServedModel:
    engine = ProcessEngine(folder, {"threads": 1, "kv_gib": 0.2})
    return ServedModel(names=(name,), engine=engine, format=detect.load_format(folder, None).format, created=1)


@pytest.fixture
def client(served: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def ask(client: openai.OpenAI, said: str = "Hi", model: str = "ignorant", **more: Any) -> Any:
    given = {"temperature": 1.0, "max_output_tokens": 400, "reasoning": {"effort": "none"}} | more
    return client.responses.create(model=model, input=said, **given)


def shaped(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}


def schema_of(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of mixed shape, bounded so that any model comes to its end."""
    kinds = ["word", "number", "enum", "pattern", "const"] + ["object", "array", "union", "recursive"] * bool(depth)
    kind = chance.choice(kinds)
    if kind == "object":
        names = chance.sample(["a", "b", "c", "some name", "ü"], chance.randint(1, 3))
        properties = {name: schema_of(chance, depth - 1) for name in names}
        needed = [name for name in names if chance.random() < 0.7]
        return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": schema_of(chance, depth - 1), "minItems": 1, "maxItems": 2}
    if kind == "union":
        return {"anyOf": [schema_of(chance, depth - 1), {"type": "null"}]}
    if kind == "recursive":
        node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
        return {
            "$defs": {"node": {**node, "required": ["next"], "additionalProperties": False}},
            "$ref": "#/$defs/node",
        }
    return {
        "word": WORD,
        "number": {"type": "integer", "minimum": -5, "maximum": 500},
        "enum": {"enum": ["red", "green", 7, None]},
        "pattern": {"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"},
        "const": {"const": {"fixed": [1, "two"]}},
    }[kind]


def lift(schema: dict[str, Any]) -> dict[str, Any]:
    """Definitions are looked for at the top."""
    found: dict[str, Any] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            found.update(value.get("$defs", {}))
            return {key: walk(inner) for key, inner in value.items() if key != "$defs"}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    lifted = walk(schema)
    return {**lifted, "$defs": found} if found else lifted


@pytest.mark.parametrize("model", ["ignorant", *(["antiphon"] if FULL_COUNTS else [])])
@pytest.mark.timeout(60 + 10 * SCHEMAS)
def test_json_fits_its_schema_whatever_the_weights(client: openai.OpenAI, model: str) -> None:
    chance, whole, bounded, missed = random.Random(4), 0, 0, 0
    for number in range(SCHEMAS):
        body = {"type": "object", "properties": {"it": lift(schema_of(chance))}, "required": ["it"]}
        schema = lift({**body, "additionalProperties": False})
        reply = ask(client, model=model, text=shaped(schema), extra_body={"seed": number})
        ends = "$defs" not in schema  # a value that may hold itself has no bound
        bounded += ends
        missed += ends and reply.status != "completed"
        if reply.status == "completed":
            whole += 1
            jsonschema.validate(json.loads(reply.output_text), schema)
        else:
            assert reply.incomplete_details.reason == "max_output_tokens"
    told = f"{whole} of {SCHEMAS} complete, all of them valid; of the {bounded} bounded ones {bounded - missed}"
    print(f"{model}: {told}")
    assert missed <= 0.05 * bounded


PATTERNS = ["[a-z]{2,5}", "(yes|no)", "[0-9]{4}-[0-9]{2}", "a{3}b?", "(x[yz]){1,4}", "[A-Z][a-z]{0,3}"]
LARKS = [
    ('start: "yes" | "no"', "yes|no"),
    ('start: "[" WORD ("," WORD)? "]"\nWORD: /[a-f]{1,4}/', r"\[[a-f]{1,4}(,[a-f]{1,4})?\]"),
    ("start: a b\na: /[0-3]/\nb: /[4-9]{2}/", "[0-3][4-9]{2}"),
]


@pytest.mark.timeout(60 + 10 * GRAMMARS)
def test_a_custom_tools_text_is_in_its_language(client: openai.OpenAI) -> None:
    chance = random.Random(5)
    for number in range(GRAMMARS):
        if number % 2:
            definition, pattern = chance.choice(LARKS)
            syntax = "lark"
        else:
            definition = pattern = chance.choice(PATTERNS)
            syntax = "regex"
        shape = {"type": "grammar", "syntax": syntax, "definition": definition}
        tool = {"type": "custom", "name": "write", "format": shape}
        reply = ask(
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
            "properties": {"word": WORD, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["word", "count"],
            "additionalProperties": False,
        },
    }
    for name in ("first", "second", "third")
]


@pytest.mark.parametrize(
    ("choice", "names"),
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
def test_a_call_that_is_demanded_comes(client: openai.OpenAI, model: str, choice: Any, names: set[str]) -> None:
    for seed in range(4):
        reply = ask(
            client, model=model, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, extra_body={"seed": seed}
        )
        assert reply.status == "completed" and reply.to_dict()["tool_choice"] == choice
        (call,) = [item for item in reply.output if item.type == "function_call"]
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), TOOLS[0]["parameters"])


def test_without_a_call_there_is_none(client: openai.OpenAI) -> None:
    for seed in range(3):
        reply = ask(client, tools=TOOLS, tool_choice="none", max_output_tokens=60, extra_body={"seed": seed})
        assert all(item.type != "function_call" for item in reply.output)


def test_the_embedded_model_thinks_before_an_answer_that_is_held(client: openai.OpenAI) -> None:
    body = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9999}},
        "required": ["sum"],
    }
    shape = shaped({**body, "additionalProperties": False})
    reply = ask(client, "What is 12 + 7?", model="antiphon", temperature=0, reasoning=None, text=shape)
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert isinstance(json.loads(reply.output_text)["sum"], int)


def test_json_objects_and_the_chat_spelling(client: openai.OpenAI) -> None:
    reply = ask(client, model="antiphon", temperature=0, text={"format": {"type": "json_object"}})
    assert reply.status == "incomplete" or isinstance(json.loads(reply.output_text), dict)
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


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"text": shaped({"$ref": "#/nowhere"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": shaped({"$ref": "http://example.com/x.json"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": shaped({"type": "string", "pattern": "(a"})}, "invalid_json_schema", "text.format.schema"),
    ({"text": shaped({"type": "rainbow"})}, "invalid_json_schema", "text.format.schema"),
    ({"tools": [{**TOOLS[0], "parameters": {"$ref": "#/no"}}]}, "invalid_function_parameters", "tools[0].parameters"),
]
NONSENSE = [
    ("regex", "(a"),
    ("regex", "(?<=a)b"),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("lark", "start: start"),
    ("lark", "start: nothing"),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
]
BOMBS = [
    ("regex", "(a{1,1000}){1,1000}b"),
    ("regex", "(.*a){30}"),
    ("lark", "\n".join([*(f"r{n}: r{n + 1} r{n + 1}" for n in range(60)), 'r60: "a"', "start: r0"])),
]


def writer(syntax: str, text: str) -> dict[str, Any]:
    shape = {"type": "grammar", "syntax": syntax, "definition": text}
    return {"tools": [{"type": "custom", "name": "w", "format": shape}], "tool_choice": "required"}


BAD += [(writer(*one), "invalid_grammar", "tools[0].format.definition") for one in NONSENSE]


@pytest.mark.parametrize(("body", "code", "param"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_kept_is_named_within_a_second(
    client: openai.OpenAI, body: dict[str, Any], code: str, param: str
) -> None:
    began = time.monotonic()
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_output_tokens=8, **body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_holds_nobody_up(client: openai.OpenAI, bomb: tuple[str, str]) -> None:
    """It is refused, its tokens are counted like any others, or it fails where it grows too large: in any case soon."""
    began = time.monotonic()
    try:
        status = ask(client, max_output_tokens=8, **writer(*bomb)).status
    except openai.BadRequestError:
        status = "refused"
    assert status in ("refused", "incomplete", "failed") and time.monotonic() - began < 1.0
