"""What the tests of requests share: a catalogue with one model that is never asked to speak."""

from typing import Any, cast

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import chat, responses
from antiphon.app.requests.history import NO_HISTORY
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.engine.protocol import EngineInfo, Sampling
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.events.inputs import CompactionInput, InputReasoning

DEFAULTS = Sampling(temperature=0.6, top_p=0.95, top_k=20)


def catalogue() -> ModelRegistry:
    replies = parse_script({"reply": [{"name": "hello", "output": ["Hello."]}]})
    info = EngineInfo(max_model_len=4096, vocab_size=256, default_sampling=DEFAULTS)
    engine = ScriptedEngine(replies, encode=lambda text: list(text.encode()), info=info)
    # Requests are read without a format: only the engine's defaults are looked at.
    return ModelRegistry([ServedModel(names=("tiny", "gpt-tiny"), engine=engine, format=cast("Any", None), created=1)])


class Known:
    """A past that is nothing but items by id, in which everything sealed says what it is sealed in."""

    def __init__(self, items: dict[str, msgspec.Struct]) -> None:
        self.find_item, self.items_before_input = items.get, NO_HISTORY.items_before_input

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        sealed = item.encrypted_content or ""
        return sealed.removeprefix("sealed:") if sealed.startswith("sealed:") else None


def ask(_items: dict[str, msgspec.Struct] | None = None, /, **body: Any) -> TurnSpec:
    """A Responses body with `model` and `input` filled in, read."""
    whole = {"model": "tiny", "input": "hi", **body}
    whole = {key: value for key, value in whole.items() if value is not ...}
    return responses.read_responses_request(
        parse_object(msgspec.json.encode(whole)), catalogue(), Known(_items or {})
    ).spec


def chat_ask(**body: Any) -> TurnSpec:
    """A chat body with `model` and `messages` filled in, read."""
    whole = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **body}
    whole = {key: value for key, value in whole.items() if value is not ...}
    return chat.read_chat_request(parse_object(msgspec.json.encode(whole)), catalogue()).spec


def blame(error: ApiError) -> tuple[int, str | None, str | None]:
    return error.status, error.code, error.param
