"""Parser of `POST /v1/chat/completions`: converts the body to the same `TurnSpec` as a Responses request."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from antiphon.app.errors import clip_text, invalid_value, missing_field, unsupported_field
from antiphon.app.options.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests import shared, tools
from antiphon.app.requests.capabilities import accept_spec
from antiphon.app.requests.chat.body import ChatBody, NamedFunction
from antiphon.app.requests.chat.hosted_tools import OfferedTools, read_hosted_tools
from antiphon.app.requests.chat.messages import read_messages
from antiphon.app.requests.chat.options import chat_details, read_chat_options, read_effort, read_template_options
from antiphon.app.requests.chat.stored import messages_to_store
from antiphon.app.requests.constraints import list_constraints
from antiphon.app.requests.fields import NOT_SUPPORTED, decode_body, refuse_unsupported
from antiphon.app.requests.fields.checks import check_choice, check_object, check_short_name, require_key
from antiphon.app.requests.fields.vllm import UsageOptions
from antiphon.app.requests.hosted_tools import HostedToolsRequest, list_hosted_types
from antiphon.app.requests.media.vision import take_media
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.structure import read_constraint
from antiphon.app.requests.tool_choice import ToolChoice, early_choice, read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.app.requests.turn_spec import ParsedRequest, StoredChat, TurnSpec
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.engine.protocol import EngineInfo, Sampling
from antiphon.events.inputs import AnyInput
from antiphon.events.response import ReasoningConfig, Response
from antiphon.events.tools import CustomTool, FunctionTool
from antiphon.harmony.format import PromptInput


def read_chat_request(
    sent: Mapping[str, Any], models: ModelRegistry, settings: Settings = DEFAULT_SETTINGS
) -> ParsedRequest[ChatForm]:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`."""
    body = decode_body(ChatBody, remove_secrets(sent))
    model = models.find_model(body.model)
    shared.check_stream_options(body)
    offered = _read_offered_tools(body, settings)
    hosted_tools = read_hosted_tools(body, sent, offered, settings)
    if body.messages is None:
        raise missing_field("messages")
    body, media = take_media("chat", body, "messages", model, settings)
    items = read_messages(body.messages or ())
    top_logprobs, effort = _top_logprobs(body), read_effort(body)
    template, form = read_template_options(body, items, settings), _read_form(body, items, offered, settings)
    tool_choice, constraint = _read_choice(offered, hosted_tools), read_constraint(body)
    _refuse_unsupported(body)
    prompt_input = PromptInput(
        items=items,
        tools=tool_choice.table,
        tool_choice=tool_choice.mode,
        allowed_tools=tool_choice.allowed_tools,
        effort=effort,
        output_constraint=constraint.output_constraint,
        single_call=offered.single_call,
        unknown_tools=settings.unknown_tools,
        template=template,
        keep_special_tokens=body.skip_special_tokens is False,
    )
    sampling = _read_sampling(body, model.engine.info, settings, form, top_logprobs)
    base_response = _base_response(body, model.engine.info, sampling, offered.tools, effort)
    spec = TurnSpec(
        base_response=base_response,
        prompt_input=prompt_input,
        prompt_param="messages",
        constraints=list_constraints(offered.tools, prompt_input, constraint.constraints),
        sampling=sampling,
        stop_strings=body.stop_strings,
        single_call=offered.single_call,
        hosted_tools=hosted_tools,
        max_prompt_tokens=shared.read_truncation(body.truncate_prompt_tokens, model.engine.info, sampling),
        n=shared.check_best_of(body),
        logprobs=form.logprobs,
        details=chat_details(form),
        stored_chat=StoredChat(messages_to_store(body), form) if body.store else None,
        cache_salt=body.cache_salt or "",
        media=media,
        priority=min(shared.read_priority(body), shared.tier_priority(base_response.service_tier)),
    )
    return accept_spec(model, spec, form, constraint_param=constraint.param)


def _read_choice(offered: OfferedTools, hosted_tools: HostedToolsRequest | None) -> ToolChoice:
    return read_tool_choice(early_choice(offered.choice, has_hosted_tools=hosted_tools is not None), offered.tools)


def _read_sampling(
    body: ChatBody, info: EngineInfo, settings: Settings, form: ChatForm, top_logprobs: int | None
) -> Sampling:
    """Returns the sampling parameters. Raises `ApiError` 400."""
    if top_logprobs is None and form.options.num_returned is not None:
        top_logprobs = 0
    sent = _token_limit(body)
    limit = sent if sent is not None else settings.default_max_output_tokens
    return shared.read_engine_fields(body, info, shared.read_sampling(body, info, limit, top_logprobs))


def _base_response(
    body: ChatBody, info: EngineInfo, sampling: Sampling, request_tools: RequestTools, effort: str | None
) -> Response:
    return shared.base_response(
        body,
        sampling,
        info.capabilities,
        tools=request_tools.echo,
        max_output_tokens=_token_limit(body),
        reasoning=ReasoningConfig(effort=effort),
        store=bool(body.store),
    )


def _refuse_unsupported(body: ChatBody) -> None:
    """Raises `ApiError` 400 for a well-formed value that is not supported."""
    refuse_unsupported(body)
    if body.modalities not in (None, ["text"]):
        raise unsupported_field("modalities", NOT_SUPPORTED)


def _read_form(body: ChatBody, items: Sequence[AnyInput], offered: OfferedTools, settings: Settings) -> ChatForm:
    """Returns the form of the reply. Raises `ApiError` 400."""
    stream_options = body.stream_options or UsageOptions()
    return ChatForm(
        stream=bool(body.stream),
        obfuscate=bool(stream_options.include_obfuscation),
        logprobs=bool(body.logprobs),
        as_function_call=offered.as_functions,
        reasoning_field=settings.chat_reasoning_field,
        include_usage=bool(stream_options.include_usage),
        continuous_usage=bool(stream_options.continuous_usage_stats),
        options=read_chat_options(body, items),
    )


def _read_offered_tools(body: ChatBody, settings: Settings) -> OfferedTools:
    """Reads tools and tool choice, or their deprecated forms. Raises `ApiError` 400."""
    _check_deprecated(body)
    if body.functions is not None:
        request_tools = _read_functions(body.functions)
        choice = _function_choice(body.function_call, request_tools)
        offered = OfferedTools(request_tools, choice, as_functions=True, single_call=True)
    else:
        request_tools = _read_tools(body.tools or (), list_hosted_types(settings))
        choice = _flatten_tool_choice(body.tool_choice)
        offered = OfferedTools(request_tools, choice, as_functions=False, single_call=body.parallel_tool_calls is False)
    return offered


def _read_tools(sent: Any, hosted_types: Collection[str]) -> RequestTools:
    """Reads the tools. Chat nests what Responses has flat: `{"type", "function": {…}}` or `{"type", "custom": {…}}`.

    Tools that the server runs, of `hosted_types`, are flat here, too: OpenAI's chat has no form for them.
    """
    flat_tools, paths = [], []
    for index, tool in enumerate(sent):
        tool_path = f"tools[{index}]"
        kind = require_key(tool, "type", tool_path)
        check_choice(kind, ("function", "custom", *sorted(hosted_types)), f"{tool_path}.type")
        if kind in hosted_types:
            flat_tools.append(dict(tool))
            paths.append(tool_path)
            continue
        inner = require_key(tool, kind, tool_path)
        check_object(inner, f"{tool_path}.{kind}")
        flat_tools.append(_flatten_grammar({**inner, "type": kind}))
        paths.append(f"{tool_path}.{kind}")
    return _check_names(tools.read_tools(flat_tools, "tools", paths))


def _check_names(request_tools: RequestTools) -> RequestTools:
    """Checks that names are as short as OpenAI's chat has them; Responses takes longer ones. Raises `ApiError` 400."""
    for tool, path in zip(request_tools.served, request_tools.paths, strict=True):
        if isinstance(tool, FunctionTool | CustomTool):
            check_short_name(tool.name, f"{path}.name")
    return request_tools


def _check_deprecated(body: ChatBody) -> None:
    """Checks the deprecated `functions` and `function_call`, which exclude their successors."""
    for older, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(body, older) is not None and getattr(body, newer) is not None:
            raise invalid_value(older, f"Send either '{older}' or '{newer}', not both.")
    if body.function_call is not None and body.functions is None:
        raise invalid_value("function_call", "'function_call' is only allowed when 'functions' are specified.")


def _read_functions(sent: Any) -> RequestTools:
    """Reads the deprecated `functions`: the functions of tools without their `type`."""
    return _check_names(tools.read_tools([{**function, "type": "function"} for function in sent], "functions"))


def _function_choice(choice: str | NamedFunction | None, request_tools: RequestTools) -> Any:
    """Returns the deprecated `function_call` in the flat form of Responses."""
    if not isinstance(choice, NamedFunction):
        return choice
    name = choice.name
    if all(tool.get("name") != name for tool in request_tools.echo):
        raise invalid_value("function_call", f"Function '{clip_text(name)}' not found in 'functions' parameter.")
    return {"type": "function", "name": name}


def _flatten_grammar(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a custom tool in the form of Responses; chat nests its grammar one level deeper."""
    tool_format = tool.get("format")
    if isinstance(tool_format, dict) and isinstance(tool_format.get("grammar"), dict):
        return {**tool, "format": {**tool_format["grammar"], "type": "grammar"}}
    return tool


def _flatten_tool_choice(choice: Any) -> Any:
    """Returns `tool_choice` in the flat form of Responses, also the tools inside `allowed_tools`."""
    if not isinstance(choice, dict):
        return choice
    inner = choice.get(str(choice.get("type")))
    if not isinstance(inner, dict):
        return choice
    flat = {"type": choice["type"], **inner}
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flatten_tool_choice(tool) for tool in flat["tools"]]
    return flat


def _token_limit(body: ChatBody) -> int | None:
    older, newer = body.max_tokens, body.max_completion_tokens
    if older is not None and newer is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise invalid_value("max_tokens", message)
    return newer if newer is not None else older


def _top_logprobs(body: ChatBody) -> int | None:
    enabled, count = bool(body.logprobs), body.top_logprobs
    if count is not None and not enabled:
        raise invalid_value("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    return (count or 0) if enabled else None
