"""`POST /v1/responses`: from the body to a `TurnSpec`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Struct, structs

from app.catalogue import Catalogue, ServedModel
from app.errors import ApiError, clip, invalid_value, missing
from app.requests import common, items, promises, tools
from app.requests.fields import RESPONSES, check, refuse
from app.requests.items import Lookup
from app.requests.promises import Promise
from app.requests.spec import TurnSpec
from engine.protocol import Sampling
from events.inputs import AnyInput
from events.response import ConversationRef, Response
from harmony.format import Conversation

Earlier = Callable[[Mapping[str, Any]], tuple[AnyInput, ...]]
"""What stands before the input, by the fields that point to it. Raises `ApiError`."""
LOGPROBS = "message.output_text.logprobs"


class Asked(Struct, frozen=True):
    """A request, read: whom it is for and what it asks."""

    model: ServedModel
    spec: TurnSpec


def nothing(body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
    """A past in which nothing was said."""
    if (previous := body.get("previous_response_id")) is not None:
        message = f"Previous response with id '{clip(previous)}' not found."
        raise ApiError(400, "previous_response_not_found", message, "previous_response_id")
    return ()


def read(
    body: Mapping[str, Any], catalogue: Catalogue, lookup: Lookup, limit: int | None = None, earlier: Earlier = nothing
) -> Asked:
    """Check everything that can be checked before the engine is asked. Raises `ApiError`.

    `lookup` finds the items that references mean, `earlier` what stands before the input of a body; `limit` is the
    operator's default for `max_output_tokens`. What is wrong is named before what is not served, so that a typing error
    is never blamed on the server.
    """
    check(RESPONSES, body)
    model = catalogue.find(body.get("model"))
    common.check_stream_options(body)
    offered = tools.read(body.get("tools") or (), "tools")
    tools.check_choice(body.get("tool_choice"), offered)
    given = _input(body, lookup)
    _check_together(body)
    refuse(RESPONSES, body)
    past = earlier(body)
    offered_all = offered + items.joined(past) + given.tools
    table = offered_all.table()
    items.check_calls((*past, *given.items))
    chosen, shape = promises.choice(body.get("tool_choice"), table), (body.get("text") or {}).get("format")
    conversation = Conversation(
        instructions=body.get("instructions"),
        items=(*past, *given.items),
        tools=table,
        tool_choice=chosen.mode,
        only=chosen.only,
        single=body.get("parallel_tool_calls") is False,
        answer=promises.answer(shape),
        effort=(body.get("reasoning") or {}).get("effort"),
    )
    spec = _spec(body, model, conversation, offered.echo, limit)
    kept = promises.of_tools(offered_all)
    if conversation.answer is not None:
        kept.append(Promise("schema", json.dumps(conversation.answer), "text.format.schema"))
    return Asked(model, structs.replace(spec, given=given.items, promises=tuple(kept)))


def _check_together(body: Mapping[str, Any]) -> None:
    """What excludes each other."""
    if body.get("conversation") is not None and body.get("previous_response_id") is not None:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise ApiError(400, "mutually_exclusive_parameters", message, "previous_response_id")
    if body.get("background") and body.get("store") is False:
        raise invalid_value("background", "A background response is read from the store: 'store' must not be false.")


def _input(body: Mapping[str, Any], lookup: Lookup) -> items.Input:
    """The input; without one the request may still lean on something that is refused by name a moment later."""
    value = body.get("input")
    if value is not None:
        return items.read(value, lookup)
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt")):
        return items.Input(())
    raise missing("input")


def _spec(
    body: Mapping[str, Any],
    model: ServedModel,
    conversation: Conversation,
    echo: tuple[dict[str, Any], ...],
    limit: int | None,
) -> TurnSpec:
    asked = body.get("max_output_tokens")
    top = _top_logprobs(body)
    chosen = common.sampling(body, model.engine.info.defaults, asked if asked is not None else limit, top)
    most = body.get("max_tool_calls")
    return TurnSpec(
        head=_head(body, chosen, echo),
        conversation=conversation,
        sampling=chosen,
        stop=common.stops(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else most,
        logprobs=top is not None,
    )


def _head(body: Mapping[str, Any], chosen: Sampling, echo: tuple[dict[str, Any], ...]) -> Response:
    thinking = body.get("reasoning") or {}
    return common.head(
        body,
        chosen,
        instructions=body.get("instructions"),
        tools=echo,
        text={**common.PLAIN, **{key: value for key, value in (body.get("text") or {}).items() if value is not None}},
        reasoning=common.reasoning(thinking.get("effort"), thinking.get("summary") or thinking.get("generate_summary")),
        max_output_tokens=body.get("max_output_tokens"),
        max_tool_calls=body.get("max_tool_calls"),
        store=body.get("store") is not False,
        background=bool(body.get("background")),
        previous_response_id=body.get("previous_response_id"),
        conversation=UNSET if (talk := common.conversation_of(body)) is None else ConversationRef(id=talk),
    )


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many likeliest tokens to tell of; None: no log-probabilities at all."""
    most: int = body.get("top_logprobs") or 0
    return most if most or LOGPROBS in (body.get("include") or ()) else None
