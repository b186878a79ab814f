"""`POST /v1/responses`: from the body to a `TurnSpec`."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, structs

from antiphon.app.errors import ApiError, invalid_value, missing
from antiphon.app.model_registry import Catalogue, ServedModel
from antiphon.app.requests import constraints, input_items, media, shared, tools
from antiphon.app.requests.constraints import Promise
from antiphon.app.requests.fields import RESPONSES, check, refuse
from antiphon.app.requests.history import NOTHING, Behind, legible
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.settings import DEFAULT_SETTINGS, Settings
from antiphon.engine.protocol import Sampling
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import ConversationRef, Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.tools import ToolTable

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
SUMMARY_WANTED = (
    "Our conversation is about to be cut short: whoever goes on with it will see none of the above, only what you "
    "write now. Write what they need: what the user wants, what was decided and done, with names, paths, ids and "
    "numbers as they are, what is still open, and what to do next. Write nothing else, and call no tool."
)
"""What the model is told when a conversation is to be compacted."""


class Asked(Struct, frozen=True):
    """A request, read: whom it is for and what it asks."""

    model: ServedModel
    spec: TurnSpec


def read(
    body: Mapping[str, Any], catalogue: Catalogue, behind: Behind = NOTHING, settings: Settings = DEFAULT_SETTINGS
) -> Asked:
    """Check everything that can be checked before the engine is asked. Raises `ApiError`.

    What is wrong is named before what is not served, so that a typing error is never blamed on the server.
    """
    check(RESPONSES, body)
    model = catalogue.find(body.get("model"))
    shared.check_stream_options(body)
    offered = tools.read(body.get("tools") or (), "tools")
    tools.check_choice(body.get("tool_choice"), offered)
    given = _input(body, behind)
    media.check(body.get("input"), "input", refused=settings.unsupported_media == "refuse")
    _check_together(body)
    refuse(RESPONSES, body)
    past = behind.earlier(body)
    offered_all = offered + input_items.joined(past) + given.tools
    conversation = _conversation(body, _said(past, given, behind), offered_all.table())
    if given.compact:
        conversation = _to_be_compacted(conversation)
    spec = _spec(body, model, conversation, offered.echo, settings)
    spec = structs.replace(spec, given=given.items)
    if given.compact:
        return Asked(model, structs.replace(spec, compact=True, stop=(), logprobs=False))
    kept = constraints.of_tools(offered_all)
    if conversation.answer_schema is not None:
        kept.append(Promise("schema", json.dumps(conversation.answer_schema), "text.format.schema"))
    return Asked(model, structs.replace(spec, promises=tuple(kept)))


def _said(past: tuple[AnyInput, ...], given: input_items.Input, behind: Behind) -> tuple[AnyInput, ...]:
    """All that was said, as the model is to read it."""
    input_items.check_calls((*past, *given.items))
    if given.compact and not (past or given.items):
        raise invalid_value("input", "There is nothing to compact.")
    earlier = legible(past, behind.opened, "previous_response_id")
    return (*earlier, *legible(given.items, behind.opened, "input"))


def _conversation(body: Mapping[str, Any], said: tuple[AnyInput, ...], table: ToolTable) -> PromptInput:
    chosen, shape = constraints.choice(body.get("tool_choice"), table), (body.get("text") or {}).get("format")
    return PromptInput(
        instructions=body.get("instructions"),
        items=said,
        tools=table,
        tool_choice=chosen.mode,
        allowed_tools=chosen.only,
        single_call=body.get("parallel_tool_calls") is False,
        answer_schema=constraints.answer(shape),
        effort=(body.get("reasoning") or {}).get("effort"),
    )


def _to_be_compacted(conversation: PromptInput) -> PromptInput:
    """The same, with the wish for a summary at its end. There is nothing to call and no shape to fit."""
    wish = InputMessage(role="user", content=SUMMARY_WANTED)
    return PromptInput(
        instructions=conversation.instructions,
        items=(*conversation.items, wish),
        effort=conversation.effort,
    )


def _check_together(body: Mapping[str, Any]) -> None:
    """What excludes each other."""
    if body.get("conversation") is not None and body.get("previous_response_id") is not None:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise ApiError(400, "mutually_exclusive_parameters", message, "previous_response_id")
    if body.get("background") and body.get("store") is False:
        raise invalid_value("background", "A background response is read from the store: 'store' must not be false.")


def _input(body: Mapping[str, Any], behind: Behind) -> input_items.Input:
    """The input; without one the request may still lean on something that is refused by name a moment later."""
    value = body.get("input")
    leans = any(body.get(name) is not None for name in ("previous_response_id", "conversation"))
    if value is not None and not (value == [] and leans):  # nothing new is something where something was said before
        return input_items.read(value, behind.item)
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt")):
        return input_items.Input(())
    raise missing("input")


def _spec(
    body: Mapping[str, Any],
    model: ServedModel,
    conversation: PromptInput,
    echo: tuple[dict[str, Any], ...],
    settings: Settings,
) -> TurnSpec:
    top = _top_logprobs(body)
    limit = body.get("max_output_tokens") or settings.default_max_output_tokens
    chosen = shared.sampling(body, model.engine.info.default_sampling, limit, top)
    most = body.get("max_tool_calls")
    return TurnSpec(
        head=_head(body, chosen, echo),
        conversation=conversation,
        sampling=chosen,
        stop=shared.stops(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else most,
        logprobs=top is not None,
        obfuscate=shared.obfuscate(body),
        truncate=body.get("truncation") == "auto",
        sealed=SEALED in (body.get("include") or ()),
    )


def _head(body: Mapping[str, Any], chosen: Sampling, echo: tuple[dict[str, Any], ...]) -> Response:
    thinking = body.get("reasoning") or {}
    return shared.head(
        body,
        chosen,
        instructions=body.get("instructions"),
        tools=echo,
        text={**shared.PLAIN, **{key: value for key, value in (body.get("text") or {}).items() if value is not None}},
        reasoning=shared.reasoning(thinking.get("effort"), thinking.get("summary") or thinking.get("generate_summary")),
        max_output_tokens=body.get("max_output_tokens"),
        max_tool_calls=body.get("max_tool_calls"),
        truncation=body.get("truncation") or "disabled",
        store=body.get("store") is not False,
        background=bool(body.get("background")),
        previous_response_id=body.get("previous_response_id"),
        conversation=UNSET if (talk := shared.conversation_of(body)) is None else ConversationRef(id=talk),
    )


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many likeliest tokens to tell of; None: no log-probabilities at all."""
    most: int = body.get("top_logprobs") or 0
    return most if most or LOGPROBS in (body.get("include") or ()) else None
