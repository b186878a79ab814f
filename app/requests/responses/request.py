"""Parser of `POST /v1/responses`: converts the body to a `TurnSpec`."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from antiphon.app.errors import ApiError, invalid_value
from antiphon.app.options.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import shared, tools
from antiphon.app.requests.capabilities import check_capabilities
from antiphon.app.requests.constraints import list_constraints
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.app.requests.fields.common import PlainTextFormat
from antiphon.app.requests.hosted_tools import read_hosted_tools
from antiphon.app.requests.media.vision import take_media
from antiphon.app.requests.responses.body import ReasoningSettings, ResponsesBody, ResponsesCacheOptions
from antiphon.app.requests.responses.compaction import MAX_SUMMARY_TOKENS, ask_for_summary
from antiphon.app.requests.responses.configuration import apply_updates
from antiphon.app.requests.responses.conversation import Conversation, read_conversation
from antiphon.app.requests.responses.history import NO_HISTORY, History
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.tool_choice import ToolChoice
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec, as_prefill
from antiphon.app.turn_types.reply_form import ResponsesForm
from antiphon.engine.protocol import Capabilities, Sampling
from antiphon.events.response import ConversationRef, PromptCacheOptions, ReasoningConfig, Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.grammar import OutputConstraint

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_ENCRYPTED_REASONING = "reasoning.encrypted_content"
COMPACTED_SHARE = 0.9
"""Share of the context window above which a conversation is compacted at the latest."""


def read_responses_request(
    sent: Mapping[str, Any], models: ModelRegistry, history: History = NO_HISTORY, settings: Settings = DEFAULT_SETTINGS
) -> ParsedRequest[ResponsesForm]:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`.

    Malformed values are reported before unsupported ones, so that a mistake in a request never looks like a missing
    feature.
    """
    body = decode_body(ResponsesBody, remove_secrets(sent))
    model = models.find_model(body.model)
    _check_combinations(body)
    request_tools = tools.read_tools(body.tools or (), "tools")
    body, media = take_media("responses", body, "input", model, settings)
    conversation = read_conversation(body, history)
    if conversation.has_updates:
        body, sent = apply_updates(body, sent, conversation.items, conversation.sent_items)
    all_tools = request_tools + conversation.tools if conversation.tools.served else request_tools
    all_tools = all_tools.without_deferred() if all_tools.search else all_tools
    hosted_tools, tool_choice = read_hosted_tools(
        sent.get("tools"), request_tools, all_tools, body.tool_choice, single_call=body.parallel_tool_calls is False
    )
    refuse_unsupported(body)
    prompt_input, form = _prompt_input(body, conversation, tool_choice, settings), _reply_form(body)
    sampling = _read_sampling(body, model, settings, compact=conversation.compact)
    capabilities, cache_options = model.engine.info.capabilities, body.prompt_cache_options or ResponsesCacheOptions()
    base_response = _base_response(body, sent, sampling, capabilities, request_tools.echo, conversation.id)
    spec = TurnSpec(
        base_response=base_response,
        priority=shared.response_priority(base_response.service_tier, body.background_options, capabilities),
        prompt_input=prompt_input,
        input_items=conversation.sent_items,
        sampling=sampling,
        # A compaction has no stop strings and no log probabilities, because no client reads its text.
        stop_strings=() if conversation.compact else body.stop_strings,
        single_call=prompt_input.single_call,
        max_tool_calls=body.max_tool_calls,
        hosted_tools=None if conversation.compact else hosted_tools,
        constraints=()
        if conversation.compact
        else list_constraints(all_tools, prompt_input, schema_param="text.format.schema"),
        logprobs=sampling.top_logprobs is not None and not conversation.compact,
        truncate=body.truncation == "auto",
        encrypt_reasoning=INCLUDE_ENCRYPTED_REASONING in (body.include or ()),
        compact=conversation.compact,
        compact_threshold=None if conversation.compact else _compact_threshold(body, model.engine.info.max_model_len),
        comparison_id=cache_options.comparison_response_id,
        media=media,
    )
    check_capabilities(spec, capabilities, constraint_param="text.format")
    return ParsedRequest(model, _prewarm(spec) if cache_options.prewarm else spec, form, conversation.earlier_items)


def _reply_form(body: ResponsesBody) -> ResponsesForm:
    obfuscate = body.stream_options is not None and bool(body.stream_options.include_obfuscation)
    return ResponsesForm(stream=bool(body.stream), obfuscate=obfuscate, include=frozenset(body.include or ()))


def _prewarm(spec: TurnSpec) -> TurnSpec:
    """Returns the turn without its output. Raises `ApiError` 400 for a compaction, which is nothing but output."""
    if spec.compact:
        param = "prompt_cache_options.prewarm"
        raise invalid_value(param, f"Invalid '{param}': a compaction cannot be processed ahead of time.")
    return as_prefill(spec)


def _prompt_input(
    body: ResponsesBody, conversation: Conversation, tool_choice: ToolChoice, settings: Settings
) -> PromptInput:
    """Returns the conversation for the model. A compaction asks for a summary of it."""
    effort = body.reasoning.effort if body.reasoning else None
    prompt_input = PromptInput(
        instructions=body.instructions,
        items=conversation.items,
        tools=tool_choice.table,
        tool_choice=tool_choice.mode,
        allowed_tools=tool_choice.allowed_tools,
        single_call=body.parallel_tool_calls is False,
        output_constraint=_output_constraint(body),
        effort=effort,
        unknown_tools=settings.unknown_tools,
    )
    return ask_for_summary(prompt_input) if conversation.compact else prompt_input


def _compact_threshold(body: ResponsesBody, context: int) -> int | None:
    if not body.context_management:
        return None
    return min(body.context_management[0].compact_threshold or context, int(COMPACTED_SHARE * context))


def _check_combinations(body: ResponsesBody) -> None:
    """Checks for parameters that need or exclude each other. Raises `ApiError` 400."""
    shared.check_stream_options(body)
    if body.conversation is not None and body.previous_response_id is not None:
        message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise ApiError(400, "mutually_exclusive_parameters", message, "previous_response_id")
    if body.background and body.store is False:
        raise invalid_value("background", "Background responses are read from the store. Set 'store' to true.")
    if body.background_options is not None:
        _check_window(body, body.background_options.completion_window)


def _check_window(body: ResponsesBody, window: str | None) -> None:
    """Checks that a turn which may wait for hours has no client that waits for it. Raises `ApiError` 400."""
    param = "background_options.completion_window"
    if window not in shared.LATE_WINDOWS:
        return
    if not body.background:
        raise invalid_value(param, f"Invalid '{param}': '{window}' is only for background responses. Set 'background'.")
    if body.stream:
        raise invalid_value(param, f"Invalid '{param}': '{window}' is not allowed when 'stream' is enabled.")


def _output_constraint(body: ResponsesBody) -> OutputConstraint | None:
    """Returns the JSON Schema that `text.format` requires of the text; None if any text is allowed."""
    text_format = body.text.format if body.text else None
    if text_format is None or isinstance(text_format, PlainTextFormat):
        return None
    return OutputConstraint(schema=text_format.schema or {"type": "object"})


def _read_sampling(body: ResponsesBody, model: ServedModel, settings: Settings, *, compact: bool) -> Sampling:
    max_tokens = body.max_output_tokens or settings.default_max_output_tokens
    if max_tokens is None and compact:
        max_tokens = MAX_SUMMARY_TOKENS
    shows_logprobs = bool(body.top_logprobs) or INCLUDE_LOGPROBS in (body.include or ())
    return shared.read_sampling(body, model.engine.info, max_tokens, body.top_logprobs or 0 if shows_logprobs else None)


def _base_response(
    body: ResponsesBody,
    sent: Mapping[str, Any],
    chosen: Sampling,
    capabilities: Capabilities,
    echo: tuple[dict[str, Any], ...],
    conversation_id: str | None,
) -> Response:
    """Returns the Response before the first event. `sent` has `text` as the client wrote it."""
    reasoning, text = body.reasoning or ReasoningSettings(), sent.get("text") or {}
    return shared.base_response(
        body,
        chosen,
        capabilities,
        instructions=body.instructions,
        tools=echo,
        text=shared.PLAIN_TEXT_CONFIG | {key: value for key, value in text.items() if value is not None},
        reasoning=ReasoningConfig(effort=reasoning.effort, summary=reasoning.summary or reasoning.generate_summary),
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        truncation=body.truncation or "disabled",
        store=body.store is not False,
        background=bool(body.background),
        previous_response_id=body.previous_response_id,
        prompt_cache_options=_echo_cache_options(body.prompt_cache_options),
        conversation=UNSET if conversation_id is None else ConversationRef(id=conversation_id),
    )


def _echo_cache_options(sent: ResponsesCacheOptions | None) -> PromptCacheOptions | UnsetType:
    if sent is None:
        return UNSET
    return PromptCacheOptions(
        mode=sent.mode or "implicit",
        ttl=sent.ttl or "30m",
        comparison_response_id=sent.comparison_response_id or UNSET,
    )
