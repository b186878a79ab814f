"""`POST /v1/responses`: from the body to a `TurnSpec`."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from antiphon.app.errors import ApiError, invalid_value, missing_field
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import constraints, input_items, media, shared, tools
from antiphon.app.requests.constraints import OutputConstraint
from antiphon.app.requests.fields import RESPONSES_FIELDS, check_fields, refuse_unsupported
from antiphon.app.requests.history import NO_HISTORY, History, decrypt_items
from antiphon.app.requests.tool_choice import read_tool_choice
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.settings import DEFAULT_SETTINGS, Settings
from antiphon.engine.protocol import Sampling
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import ConversationRef, Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.tools import ToolTable

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_ENCRYPTED_REASONING = "reasoning.encrypted_content"
COMPACTION_PROMPT = (
    "Our conversation is about to be cut short: whoever goes on with it will see none of the above, only what you "
    "write now. Write what they need: what the user wants, what was decided and done, with names, paths, ids and "
    "numbers as they are, what is still open, and what to do next. Write nothing else, and call no tool."
)
"""What the model is told when a conversation is to be compacted."""


def read_responses_request(
    body: Mapping[str, Any], models: ModelRegistry, history: History = NO_HISTORY, settings: Settings = DEFAULT_SETTINGS
) -> ParsedRequest:
    """Check everything that can be checked before the engine is asked. Raises `ApiError`.

    What is wrong is named before what is not served, so that a typing error is never blamed on the server.
    """
    check_fields(RESPONSES_FIELDS, body)
    model = models.find_model(body.get("model"))
    shared.check_stream_options(body)
    offered = tools.read_tools(body.get("tools") or (), "tools")
    tools.check_choice(body.get("tool_choice"), offered)
    given = _read_input(body, history)
    media.check_media(body.get("input"), "input", refused=settings.unsupported_media == "refuse")
    _check_exclusive(body)
    refuse_unsupported(RESPONSES_FIELDS, body)
    past = history.items_before_input(body)
    offered_all = offered + input_items.additional_tools(past) + given.tools
    prompt_input = _prompt_input(body, _history_items(past, given, history), offered_all.build_table())
    if given.compact:
        prompt_input = _with_compaction_prompt(prompt_input)
    constrained = [] if given.compact else _output_constraints(offered_all, prompt_input)
    spec = _turn_spec(body, model, prompt_input, given, tuple(constrained), offered.echo, settings)
    return ParsedRequest(model, spec, past)


def _output_constraints(offered: tools.RequestTools, prompt_input: PromptInput) -> list[OutputConstraint]:
    """Returns the schemas and grammars that the answer must match."""
    found = constraints.tool_constraints(offered)
    if prompt_input.answer_schema is not None:
        found.append(OutputConstraint("schema", json.dumps(prompt_input.answer_schema), "text.format.schema"))
    return found


def _history_items(
    past: tuple[AnyInput, ...], given: input_items.RequestInput, behind: History
) -> tuple[AnyInput, ...]:
    """All that was said, as the model is to read it."""
    input_items.check_calls((*past, *given.items))
    if given.compact and not (past or given.items):
        raise invalid_value("input", "There is nothing to compact.")
    earlier = decrypt_items(past, behind.decrypt, "previous_response_id")
    return (*earlier, *decrypt_items(given.items, behind.decrypt, "input"))


def _prompt_input(body: Mapping[str, Any], said: tuple[AnyInput, ...], table: ToolTable) -> PromptInput:
    chosen, shape = read_tool_choice(body.get("tool_choice"), table), (body.get("text") or {}).get("format")
    return PromptInput(
        instructions=body.get("instructions"),
        items=said,
        tools=table,
        tool_choice=chosen.mode,
        allowed_tools=chosen.allowed_tools,
        single_call=body.get("parallel_tool_calls") is False,
        answer_schema=constraints.answer_schema(shape),
        effort=(body.get("reasoning") or {}).get("effort"),
    )


def _with_compaction_prompt(conversation: PromptInput) -> PromptInput:
    """The same, with the wish for a summary at its end. There is nothing to call and no shape to fit."""
    wish = InputMessage(role="user", content=COMPACTION_PROMPT)
    return PromptInput(
        instructions=conversation.instructions,
        items=(*conversation.items, wish),
        effort=conversation.effort,
    )


def _check_exclusive(body: Mapping[str, Any]) -> None:
    """What excludes each other."""
    if body.get("conversation") is not None and body.get("previous_response_id") is not None:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise ApiError(400, "mutually_exclusive_parameters", message, "previous_response_id")
    if body.get("background") and body.get("store") is False:
        raise invalid_value("background", "A background response is read from the store: 'store' must not be false.")


def _read_input(body: Mapping[str, Any], behind: History) -> input_items.RequestInput:
    """The input; without one the request may still lean on something that is refused by name a moment later."""
    value = body.get("input")
    leans = any(body.get(name) is not None for name in ("previous_response_id", "conversation"))
    if value is not None and not (value == [] and leans):  # nothing new is something where something was said before
        return input_items.read_input(value, behind.find_item)
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt")):
        return input_items.RequestInput(())
    raise missing_field("input")


def _turn_spec(
    body: Mapping[str, Any],
    model: ServedModel,
    prompt_input: PromptInput,
    given: input_items.RequestInput,
    constrained: tuple[OutputConstraint, ...],
    echo: tuple[dict[str, Any], ...],
    settings: Settings,
) -> TurnSpec:
    """A compaction has no stop strings and no log-probabilities: nobody reads its text."""
    top = _top_logprobs(body)
    limit = body.get("max_output_tokens") or settings.default_max_output_tokens
    sampling = shared.read_sampling(body, model.engine.info.default_sampling, limit, top)
    return TurnSpec(
        base_response=_base_response(body, sampling, echo),
        prompt_input=prompt_input,
        input_items=given.items,
        sampling=sampling,
        stop_strings=() if given.compact else shared.read_stop_strings(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else body.get("max_tool_calls"),
        constraints=constrained,
        logprobs=top is not None and not given.compact,
        obfuscate=shared.wants_obfuscation(body),
        truncate=body.get("truncation") == "auto",
        encrypt_reasoning=INCLUDE_ENCRYPTED_REASONING in (body.get("include") or ()),
        compact=given.compact,
    )


def _base_response(body: Mapping[str, Any], chosen: Sampling, echo: tuple[dict[str, Any], ...]) -> Response:
    thinking = body.get("reasoning") or {}
    return shared.base_response(
        body,
        chosen,
        instructions=body.get("instructions"),
        tools=echo,
        text={
            **shared.PLAIN_TEXT_CONFIG,
            **{key: value for key, value in (body.get("text") or {}).items() if value is not None},
        },
        reasoning=shared.reasoning_config(
            thinking.get("effort"), thinking.get("summary") or thinking.get("generate_summary")
        ),
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
    return most if most or INCLUDE_LOGPROBS in (body.get("include") or ()) else None
