"""Parser of `POST /v1/responses`: converts the body to a `TurnSpec`."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from antiphon.app.base.errors import ApiError, invalid_value, missing_field
from antiphon.app.base.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import constraints, input_items, media, shared, tools
from antiphon.app.requests.capabilities import check_capabilities
from antiphon.app.requests.constraints import OutputConstraint
from antiphon.app.requests.fields import check_fields, refuse_unsupported
from antiphon.app.requests.fields.responses import RESPONSES_FIELDS
from antiphon.app.requests.history import NO_HISTORY, History, decrypt_items
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.tool_choice import ToolChoice, read_tool_choice
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
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
"""Prompt that asks the model for the summary of a conversation that is to be compacted."""
MAX_SUMMARY_TOKENS = 8192
"""Limit of a compaction turn without one. Its client sees no text, and would wait for a model that does not end."""


def read_responses_request(
    body: Mapping[str, Any], models: ModelRegistry, history: History = NO_HISTORY, settings: Settings = DEFAULT_SETTINGS
) -> ParsedRequest:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`.

    Malformed values are reported before unsupported ones, so that a mistake in a request never looks like a missing
    feature.
    """
    check_fields(RESPONSES_FIELDS, body)
    body = remove_secrets(body)
    model = models.find_model(body.get("model"))
    shared.check_stream_options(body)
    request_tools = tools.read_tools(body.get("tools") or (), "tools")
    request_input = _read_input(body, history)
    media.check_media(body.get("input"), "input", refused=settings.unsupported_media == "refuse")
    _check_exclusive(body)
    earlier_items = history.items_before_input(body)
    all_tools = request_tools + input_items.additional_tools(earlier_items) + request_input.tools
    tool_table = all_tools.build_table()
    tool_choice = read_tool_choice(body.get("tool_choice"), all_tools, tool_table)
    refuse_unsupported(RESPONSES_FIELDS, body)
    items = _history_items(earlier_items, request_input, history)
    prompt_input = _prompt_input(body, items, tool_table, tool_choice, settings)
    if request_input.compact:
        prompt_input = _with_compaction_prompt(prompt_input)
    output_constraints = [] if request_input.compact else _output_constraints(all_tools, prompt_input)
    spec = _turn_spec(body, model, prompt_input, request_input, tuple(output_constraints), request_tools.echo, settings)
    check_capabilities(spec, model.engine.info.capabilities, form_param="text.format")
    return ParsedRequest(model, spec, earlier_items)


def _output_constraints(offered: tools.RequestTools, prompt_input: PromptInput) -> list[OutputConstraint]:
    """Returns the schemas and grammars that the answer must match."""
    result = constraints.tool_constraints(offered, all_schemas=prompt_input.needs_grammar)
    if prompt_input.answer_form is not None and prompt_input.answer_form.schema is not None:
        result.append(constraints.schema_constraint(prompt_input.answer_form.schema, "text.format.schema"))
    return result


def _history_items(
    history: tuple[AnyInput, ...], request_input: input_items.RequestInput, stored_history: History
) -> tuple[AnyInput, ...]:
    """Returns all items of the conversation in the form that the model reads. Raises `ApiError` 400."""
    input_items.check_calls((*history, *request_input.items))
    if request_input.compact and not (history or request_input.items):
        raise invalid_value("input", "There is nothing to compact: the conversation has no items.")
    earlier = decrypt_items(history, stored_history.decrypt, "previous_response_id")
    return (*earlier, *decrypt_items(request_input.items, stored_history.decrypt, "input"))


def _prompt_input(
    body: Mapping[str, Any],
    items: tuple[AnyInput, ...],
    table: ToolTable,
    tool_choice: ToolChoice,
    settings: Settings,
) -> PromptInput:
    return PromptInput(
        instructions=body.get("instructions"),
        items=items,
        tools=table,
        tool_choice=tool_choice.mode,
        allowed_tools=tool_choice.allowed_tools,
        single_call=body.get("parallel_tool_calls") is False,
        answer_form=constraints.answer_form((body.get("text") or {}).get("format")),
        effort=(body.get("reasoning") or {}).get("effort"),
        unknown_tools=settings.unknown_tools,
    )


def _with_compaction_prompt(conversation: PromptInput) -> PromptInput:
    """Appends the request for a summary to the conversation, without tools and without an answer schema."""
    summary_request = InputMessage(role="user", content=COMPACTION_PROMPT)
    return PromptInput(
        instructions=conversation.instructions,
        items=(*conversation.items, summary_request),
        effort=conversation.effort,
    )


def _check_exclusive(body: Mapping[str, Any]) -> None:
    """Checks for parameters that exclude each other. Raises `ApiError` 400."""
    if body.get("conversation") is not None and body.get("previous_response_id") is not None:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise ApiError(400, "mutually_exclusive_parameters", message, "previous_response_id")
    if body.get("background") and body.get("store") is False:
        raise invalid_value("background", "Background responses are read from the store. Set 'store' to true.")


def _read_input(body: Mapping[str, Any], stored_history: History) -> input_items.RequestInput:
    """Reads `input`. It may be missing if there is earlier history, or `prompt`, which is refused by name later."""
    value = body.get("input")
    has_history = any(body.get(name) is not None for name in ("previous_response_id", "conversation"))
    if value is not None and not (value == [] and has_history):  # an empty input is valid after earlier history
        return input_items.read_input(value, stored_history.find_item)
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt")):
        return input_items.RequestInput(())
    raise missing_field("input")


def _turn_spec(
    body: Mapping[str, Any],
    model: ServedModel,
    prompt_input: PromptInput,
    request_input: input_items.RequestInput,
    output_constraints: tuple[OutputConstraint, ...],
    echo: tuple[dict[str, Any], ...],
    settings: Settings,
) -> TurnSpec:
    """Builds the turn. A compaction has no stop strings and no log probabilities, because no client reads its text."""
    top_logprobs = _top_logprobs(body)
    max_tokens = body.get("max_output_tokens") or settings.default_max_output_tokens
    if max_tokens is None and request_input.compact:
        max_tokens = MAX_SUMMARY_TOKENS
    sampling = shared.read_sampling(body, model.engine.info, max_tokens, top_logprobs)
    return TurnSpec(
        base_response=_base_response(body, sampling, echo),
        prompt_input=prompt_input,
        input_items=request_input.items,
        sampling=sampling,
        stop_strings=() if request_input.compact else shared.read_stop_strings(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else body.get("max_tool_calls"),
        constraints=output_constraints,
        logprobs=top_logprobs is not None and not request_input.compact,
        obfuscate=shared.wants_obfuscation(body),
        truncate=body.get("truncation") == "auto",
        encrypt_reasoning=INCLUDE_ENCRYPTED_REASONING in (body.get("include") or ()),
        compact=request_input.compact,
    )


def _base_response(body: Mapping[str, Any], chosen: Sampling, echo: tuple[dict[str, Any], ...]) -> Response:
    reasoning = body.get("reasoning") or {}
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
            reasoning.get("effort"), reasoning.get("summary") or reasoning.get("generate_summary")
        ),
        max_output_tokens=body.get("max_output_tokens"),
        max_tool_calls=body.get("max_tool_calls"),
        truncation=body.get("truncation") or "disabled",
        store=body.get("store") is not False,
        background=bool(body.get("background")),
        previous_response_id=body.get("previous_response_id"),
        conversation=UNSET
        if (conversation_id := shared.conversation_of(body)) is None
        else ConversationRef(id=conversation_id),
    )


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    """Returns the number of most likely tokens to report at each position; None if log probabilities are off."""
    count: int = body.get("top_logprobs") or 0
    return count if count or INCLUDE_LOGPROBS in (body.get("include") or ()) else None
