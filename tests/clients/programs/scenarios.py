"""Runs a client's scenarios and prints what the client saw. Every Python program of this folder uses it.

A program is run as `python PROGRAM TASK`. The task is a JSON object: the fields of `Task`. The program prints
{client: {scenario: {...}}}; a scenario that raised is {"failure": traceback}.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pydantic


class Task(pydantic.BaseModel):
    """What the test hands to a program."""

    roots: dict[str, str]
    """The servers, without `/v1`, by how they return reasoning: as `content` or as `summary`."""
    model: str
    prompts: dict[str, str]
    """User texts by the first word of a scenario's name."""
    tool_result: str
    fault: str


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int


TASK = Task.model_validate_json(sys.argv[1])
TOOL = {
    "name": "get_weather",
    "description": "Returns the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHAT_TOOL = {"type": "function", "function": TOOL}
TOO_MUCH = 9.0
"""No API accepts it as temperature."""
UNKNOWN_MODEL = "unknown-model"


def run_scenarios(clients: dict[str, Any]) -> None:
    """Calls every public method of every client and prints the results."""
    json.dump({name: _run_methods(client) for name, client in clients.items()}, sys.stdout)


def _run_methods(client: Any) -> dict[str, Any]:
    names = [name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))]
    return {name: _run_method(getattr(client, name)) for name in names}


def _run_method(method: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return method()
    except Exception:  # noqa: BLE001 - the test reports it
        return {"failure": traceback.format_exc()[-1500:]}


def describe_error(attempt: Callable[[], Any]) -> dict[str, Any]:
    """Returns the class and the HTTP status of the error that a call raises."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - its class is the result
        return {"error": type(error).__name__, "status": getattr(error, "status_code", None)}
    return {"error": None, "status": None}


def read_broken_stream(attempt: Callable[[], Any]) -> dict[str, Any]:
    """Tells whether a stream that breaks off raises an error with the engine's message: otherwise it looks whole."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - clients have many classes for it
        return {"raised": True, "has_message": TASK.fault in str(error)}
    return {"raised": False}


def join_pieces(pieces: Iterable[str | None]) -> dict[str, Any]:
    """Returns the text of a stream, and whether it came in pieces."""
    texts = [piece for piece in pieces if piece]
    return {"text": "".join(texts), "in_pieces": len(texts) > 1}
