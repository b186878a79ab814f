"""Parser of `POST /v1/messages`: converts the body to the same `TurnSpec` as a Responses request."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from antiphon.app.errors import clip_text, invalid_value, missing_field, unsupported_field
from antiphon.app.options.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests import shared, tools
from antiphon.app.requests.capabilities import accept_spec
from antiphon.app.requests.constraints import list_constraints
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.app.requests.fields.checks import check_choice, check_object, check_string, require_key
from antiphon.app.requests.hosted_tools import HostedToolRequest, HostedToolsRequest, join_requests
from antiphon.app.requests.media.vision import take_media
from antiphon.app.requests.messages.body import CountTokensBody, JsonFormat, MessagesBody, ToolChoiceSettings
from antiphon.app.requests.messages.conversation import ConversationReader, Decrypt, has_attribution, read_system
from antiphon.app.requests.messages.hosted_tools import find_choice, read_hosted_tools
from antiphon.app.requests.tool_choice import ToolChoice, early_choice, read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.turn_types.reply_form import MessagesForm
from antiphon.events.response import ReasoningConfig
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.harmony.grammar import OutputConstraint

SERVER_TOOL_PREFIXES = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
CLIENT_TOOL_PREFIXES = ("bash_", "text_editor_", "computer_", "memory_")
RESPONSES_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""Modes of `tool_choice` in the words of the Responses API."""


def read_messages_request(
    sent: Mapping[str, Any],
    models: ModelRegistry,
    decrypt: Decrypt,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    count_only: bool = False,
    drop_foreign: bool = False,
) -> ParsedRequest[MessagesForm]:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`.

    `count_only`: the request only counts the tokens of its prompt, and has none of the fields of a generation.
    `drop_foreign`: thinking that this server did not sign is left out, unless the request says otherwise.
    """
    decoded = decode_body(CountTokensBody if count_only else MessagesBody, sent)
    body = decoded if isinstance(decoded, MessagesBody) else MessagesBody(**structs.asdict(decoded))
    model = models.find_model(body.model)
    _check_required(body, count_only=count_only)
    _check_thinking(body)
    _check_begun_answer(body)
    request_tools, choice, hosted_tools = _read_offered_tools(body, settings)
    body, media = take_media("messages", body, "messages", model, settings)
    reader = ConversationReader(decrypt, drops_foreign=_drops_foreign(body, drop_foreign))
    items = reader.read_messages(body.messages or ())
    tool_choice = read_tool_choice(early_choice(choice, has_hosted_tools=hosted_tools is not None), request_tools)
    prompt_input = _prompt_input(body, items, tool_choice, settings)
    refuse_unsupported(body)
    sampling = shared.read_sampling(body, model.engine.info, body.max_tokens, None)
    spec = TurnSpec(
        base_response=shared.base_response(
            body,
            sampling,
            tool_choice=choice,
            tools=request_tools.echo,
            max_output_tokens=body.max_tokens,
            reasoning=ReasoningConfig(effort=_read_effort(body)),
            store=False,
        ),
        prompt_input=prompt_input,
        prompt_param="messages",
        constraints=list_constraints(request_tools, prompt_input, schema_param=f"{_output_format(body)[1]}.schema"),
        sampling=sampling,
        stop_strings=tuple(body.stop_sequences or ()),
        single_call=prompt_input.single_call,
        hosted_tools=hosted_tools,
        encrypt_reasoning=True,
        media=media,
    )
    return accept_spec(model, spec, _build_form(body, reader), constraint_param="output_config.format")


def _check_required(body: MessagesBody, *, count_only: bool) -> None:
    if body.max_tokens is None and not count_only:
        raise missing_field("max_tokens")
    if body.messages is None:
        raise missing_field("messages")


def _build_form(body: MessagesBody, reader: ConversationReader) -> MessagesForm:
    """Returns the form of the reply. It names what of the request is no part of the prompt."""
    dropped = (*(["system[0]"] if has_attribution(body.system) else []), *reader.dropped)
    return MessagesForm(stream=bool(body.stream), show_thinking=_shows_thinking(body), dropped=dropped)


def _prompt_input(
    body: MessagesBody, items: tuple[Any, ...], tool_choice: ToolChoice, settings: Settings
) -> PromptInput:
    return PromptInput(
        instructions=read_system(body.system),
        items=items,
        tools=tool_choice.table,
        tool_choice=tool_choice.mode,
        allowed_tools=tool_choice.allowed_tools,
        single_call=_is_single_call(body),
        output_constraint=_output_constraint(body),
        effort=_read_effort(body),
        unknown_tools=settings.unknown_tools,
        template=TemplateOptions(continue_final_message=_is_begun(body)),
    )


def _shows_thinking(body: MessagesBody) -> bool:
    return body.thinking is None or body.thinking.display != "omitted"


def _drops_foreign(body: MessagesBody, default: bool) -> bool:
    binding = None if body.thinking is None else body.thinking.block_binding
    behavior = None if binding is None else binding.prefix_mismatch_behavior
    return default if behavior is None else behavior == "drop_block"


def _check_thinking(body: MessagesBody) -> None:
    """Raises `ApiError` 400 for a missing budget, or one that leaves no token for the answer."""
    if body.thinking is None:
        return
    budget, limit = body.thinking.budget_tokens, body.max_tokens
    if body.thinking.type == "enabled" and budget is None:
        raise missing_field("thinking.budget_tokens")
    if budget is not None and limit is not None and budget >= limit:
        message = "Invalid 'thinking.budget_tokens': it must be less than 'max_tokens'."
        raise invalid_value("thinking.budget_tokens", message)


def _is_begun(body: MessagesBody) -> bool:
    """Tells whether the last message is the beginning of the answer."""
    return body.messages is not None and body.messages[-1:] != [] and body.messages[-1].get("role") == "assistant"


def _check_begun_answer(body: MessagesBody) -> None:
    """Raises `ApiError` 400 for an answer that must begin with thinking, but has been begun with text."""
    if _is_begun(body) and body.thinking is not None and body.thinking.type in ("enabled", "adaptive"):
        message = "the conversation must end with a user message if thinking is enabled."
        raise invalid_value("messages", f"Invalid 'messages': {message}")


def _read_effort(body: MessagesBody) -> str | None:
    """Returns the reasoning effort: "none" if thinking is disabled."""
    if body.thinking is not None and body.thinking.type == "disabled":
        return "none"
    return body.output_config.effort if body.output_config else None


def _output_format(body: MessagesBody) -> tuple[JsonFormat | None, str]:
    """Returns the format of the text, and its path in the request."""
    if body.output_config is not None and body.output_config.format is not None:
        return body.output_config.format, "output_config.format"
    return body.output_format, "output_format"


def _output_constraint(body: MessagesBody) -> OutputConstraint | None:
    output_format = _output_format(body)[0]
    return None if output_format is None else OutputConstraint(schema=output_format.schema or {"type": "object"})


def _read_offered_tools(body: MessagesBody, settings: Settings) -> tuple[RequestTools, Any, HostedToolsRequest | None]:
    """Returns the tools of the client, `tool_choice` in the form of Responses, and the tools that the server runs."""
    request_tools = _read_tools(body.tools or ())
    requests = read_hosted_tools(body.tools or (), body.mcp_servers or (), settings)
    choice = _flatten_tool_choice(body.tool_choice, requests)
    return request_tools, choice, join_requests(requests, request_tools, choice, single_call=_is_single_call(body))


def _is_single_call(body: MessagesBody) -> bool:
    return body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is True


def _read_tools(sent: Sequence[Mapping[str, Any]]) -> RequestTools:
    """Reads the tools that the client runs, in the form of Responses."""
    flat_tools, paths = [], []
    for index, tool in enumerate(sent):
        path = f"tools[{index}]"
        kind = tool.get("type") or "custom"
        check_string(kind, f"{path}.type")
        if kind.startswith(SERVER_TOOL_PREFIXES):
            continue
        if kind.startswith(CLIENT_TOOL_PREFIXES):
            why = f"Tools of type '{clip_text(kind)}' have no schema here. Define the tool with an 'input_schema'."
            raise unsupported_field(f"{path}.type", why)
        check_choice(kind, ("custom",), f"{path}.type")
        schema = require_key(tool, "input_schema", path)
        check_object(schema, f"{path}.input_schema")
        flat = {"type": "function", "name": require_key(tool, "name", path), "parameters": schema}
        flat_tools.append({**flat, "description": tool.get("description"), "strict": tool.get("strict")})
        paths.append(path)
    return tools.read_tools(flat_tools, "tools", paths, schema_key="input_schema")


def _flatten_tool_choice(choice: ToolChoiceSettings | None, requests: Sequence[HostedToolRequest]) -> Any:
    """Returns `tool_choice` in the form of Responses."""
    if choice is None:
        return "auto"
    if choice.type != "tool":
        return RESPONSES_CHOICES[choice.type]
    if choice.name is None:
        raise missing_field("tool_choice.name")
    return find_choice(choice.name, requests)
