"""Builders of request bodies, which are read against one model that never generates."""

from typing import Any, cast

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests.chat import request as chat
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.responses import request as responses
from antiphon.app.requests.responses.history import NO_HISTORY
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.turn_types.reply_form import ChatForm, CompletionForm, ReplyForm
from antiphon.engine.protocol import Capabilities, EngineInfo, Sampling
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.events.inputs import CompactionInput, InputReasoning

DEFAULT_SAMPLING = Sampling(temperature=0.6, top_p=0.95, top_k=20)


def make_registry(capabilities: Capabilities = Capabilities()) -> ModelRegistry:  # noqa: B008  # it is frozen
    replies = parse_script({"reply": [{"name": "hello", "output": ["Hello."]}]})
    info = EngineInfo(max_model_len=4096, vocab_size=256, default_sampling=DEFAULT_SAMPLING, capabilities=capabilities)
    engine = ScriptedEngine(replies, encode=lambda text: list(text.encode()), info=info)
    # Reading a request uses the engine's defaults, and never the format.
    return ModelRegistry([ServedModel(names=("tiny", "gpt-tiny"), engine=engine, format=cast("Any", None), created=1)])


class FakeHistory:
    """A history of stored items by id. It decrypts content that begins with `sealed:` by removing that prefix."""

    def __init__(self, items: dict[str, msgspec.Struct]) -> None:
        self.find_item, self.items_before_input = items.get, NO_HISTORY.items_before_input

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        content = item.encrypted_content or ""
        return content.removeprefix("sealed:") if content.startswith("sealed:") else None


def read_responses_spec(_items: dict[str, msgspec.Struct] | None = None, /, **body: Any) -> TurnSpec:
    """Reads a Responses body like `read_responses`."""
    return read_responses(_items, **body).spec


def read_responses(_items: dict[str, msgspec.Struct] | None = None, /, **body: Any) -> ParsedRequest[ReplyForm]:
    """Reads a Responses body, with defaults for `model` and `input`. The value `...` removes a key."""
    fields = {"model": "tiny", "input": "hi", **body}
    fields = {key: value for key, value in fields.items() if value is not ...}
    return responses.read_responses_request(
        parse_object(msgspec.json.encode(fields)), make_registry(), FakeHistory(_items or {})
    )


def read_chat_spec(**body: Any) -> TurnSpec:
    """Reads a Chat Completions body like `read_chat`."""
    return read_chat(**body).spec


def read_chat(**body: Any) -> ParsedRequest[ChatForm]:
    """Reads a Chat Completions body, with defaults for `model` and `messages`. The value `...` removes a key."""
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **body}
    fields = {key: value for key, value in fields.items() if value is not ...}
    return chat.read_chat_request(parse_object(msgspec.json.encode(fields)), make_registry())


def read_completion(**body: Any) -> tuple[tuple[TurnSpec, ...], CompletionForm]:
    """Reads a Completions body, with defaults for `model` and `prompt`. The value `...` removes a key."""
    fields = {"model": "tiny", "prompt": "hi", **body}
    fields = {key: value for key, value in fields.items() if value is not ...}
    request = read_completion_request(parse_object(msgspec.json.encode(fields)), make_registry())
    return request.specs, request.form


def summarize_error(error: ApiError) -> tuple[int, str | None, str | None]:
    """Returns status, code and param."""
    return error.status, error.code, error.param
