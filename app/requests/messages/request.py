"""Parser of `POST /v1/messages`: converts the body to the same `TurnSpec` as a Responses request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.app.base.errors import ApiError, clip_text, invalid_value, missing_field, unsupported_field
from antiphon.app.base.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.model_registry import ModelRegistry
from antiphon.app.requests import constraints, shared, tools
from antiphon.app.requests import validators as c
from antiphon.app.requests.capabilities import accept_spec
from antiphon.app.requests.constraints import OutputConstraint
from antiphon.app.requests.fields import RequestField, check_fields, refuse_unsupported
from antiphon.app.requests.fields.messages import COUNTED_FIELDS, MESSAGES_FIELDS
from antiphon.app.requests.messages.conversation import ConversationReader, Decrypt, read_system
from antiphon.app.requests.tool_choice import read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.engine.protocol import Sampling
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput, TemplateOptions

SERVER_TOOL_PREFIXES = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
CLIENT_TOOL_PREFIXES = ("bash_", "text_editor_", "computer_", "memory_")
RESPONSES_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""Modes of `tool_choice` in the words of the Responses API."""


def read_messages_request(
    body: Mapping[str, Any],
    models: ModelRegistry,
    decrypt: Decrypt,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    count_only: bool = False,
) -> ParsedRequest:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`.

    `count_only`: the request only counts the tokens of its prompt, and has none of the fields of a generation.
    """
    fields: tuple[RequestField, ...] = COUNTED_FIELDS if count_only else MESSAGES_FIELDS
    check_fields(fields, body)
    model = models.find_model(body.get("model"))
    required = ("messages",) if count_only else ("max_tokens", "messages")
    for name in required:
        if body.get(name) is None:
            raise missing_field(name)
    _check_thinking_budget(body)
    _check_begun_answer(body)
    request_tools = _read_tools(body.get("tools") or ())
    choice = _flatten_tool_choice(body.get("tool_choice"))
    reader = ConversationReader(decrypt, refuse_media=settings.unsupported_media == "refuse")
    items = reader.read_messages(body["messages"])
    prompt_input = _prompt_input(body, items, choice, request_tools, settings)
    refuse_unsupported(fields, body)
    sampling = shared.read_sampling(body, model.engine.info, body.get("max_tokens"), None)
    spec = TurnSpec(
        base_response=_base_response(body, choice, sampling, request_tools),
        prompt_input=prompt_input,
        constraints=_output_constraints(body, request_tools, prompt_input),
        sampling=sampling,
        stop_strings=tuple(body.get("stop_sequences") or ()),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if prompt_input.single_call else None,
        encrypt_reasoning=True,
        hide_reasoning=(body.get("thinking") or {}).get("display") == "omitted",
    )
    return accept_spec(model, spec, form_param="output_config.format")


def _base_response(body: Mapping[str, Any], choice: Any, sampling: Sampling, request_tools: RequestTools) -> Response:
    echoed = {"model": body["model"], "tool_choice": choice}
    return shared.base_response(
        echoed,
        sampling,
        tools=request_tools.echo,
        text=shared.PLAIN_TEXT_CONFIG,
        max_output_tokens=body.get("max_tokens"),
        reasoning=shared.reasoning_config(_effort(body), None),
        store=False,
    )


def _prompt_input(
    body: Mapping[str, Any], items: tuple[Any, ...], choice: Any, request_tools: RequestTools, settings: Settings
) -> PromptInput:
    table = request_tools.build_table()
    tool_choice = read_tool_choice(choice, request_tools, table)
    return PromptInput(
        instructions=read_system(body.get("system")),
        items=items,
        tools=table,
        tool_choice=tool_choice.mode,
        allowed_tools=tool_choice.allowed_tools,
        single_call=(body.get("tool_choice") or {}).get("disable_parallel_tool_use") is True,
        answer_form=constraints.answer_form(_output_format(body)[0]),
        effort=_effort(body),
        unknown_tools=settings.unknown_tools,
        template=TemplateOptions(continue_final_message=_is_begun(body)),
    )


def _check_thinking_budget(body: Mapping[str, Any]) -> None:
    budget, limit = (body.get("thinking") or {}).get("budget_tokens"), body.get("max_tokens")
    if budget is not None and limit is not None and budget >= limit:
        message = "Invalid 'thinking.budget_tokens': it must be less than 'max_tokens'."
        raise invalid_value("thinking.budget_tokens", message)


def _is_begun(body: Mapping[str, Any]) -> bool:
    """Tells whether the last message is the beginning of the answer."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages") or ()
    return bool(messages) and messages[-1].get("role") == "assistant"


def _check_begun_answer(body: Mapping[str, Any]) -> None:
    """Raises `ApiError` 400 for an answer that must begin with thinking, but has been begun with text."""
    if _is_begun(body) and (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        message = "the conversation must end with a user message if thinking is enabled."
        raise invalid_value("messages", f"Invalid 'messages': {message}")


def _effort(body: Mapping[str, Any]) -> str | None:
    """Returns the reasoning effort: "none" if thinking is disabled."""
    if (body.get("thinking") or {}).get("type") == "disabled":
        return "none"
    effort: str | None = (body.get("output_config") or {}).get("effort")
    return effort


def _output_format(body: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Returns the format of the text, and its path in the request."""
    nested = (body.get("output_config") or {}).get("format")
    sent, path = (
        (nested, "output_config.format") if nested is not None else (body.get("output_format"), "output_format")
    )
    if sent is not None:
        c.require_key(sent, "type", path)
        c.require_key(sent, "schema", path)
    return sent, path


def _output_constraints(
    body: Mapping[str, Any], request_tools: RequestTools, prompt_input: PromptInput
) -> tuple[OutputConstraint, ...]:
    """Returns the schemas that the answer must match."""
    result = constraints.tool_constraints(request_tools, all_schemas=prompt_input.needs_grammar)
    if prompt_input.answer_form is not None and prompt_input.answer_form.schema is not None:
        path = f"{_output_format(body)[1]}.schema"
        result.append(constraints.schema_constraint(prompt_input.answer_form.schema, path))
    return tuple(result)


def _read_tools(sent: Sequence[Mapping[str, Any]]) -> RequestTools:
    """Reads the tools in the form of Responses. Server tools are accepted and not offered to the model."""
    flat_tools, paths = [], []
    for index, tool in enumerate(sent):
        path = f"tools[{index}]"
        kind = tool.get("type") or "custom"
        c.string_like()(kind, f"{path}.type")
        if kind.startswith(SERVER_TOOL_PREFIXES):
            continue
        if kind.startswith(CLIENT_TOOL_PREFIXES):
            why = f"Tools of type '{clip_text(kind)}' have no schema here. Define the tool with an 'input_schema'."
            raise unsupported_field(f"{path}.type", why)
        c.one_of(("custom",))(kind, f"{path}.type")
        schema = c.require_key(tool, "input_schema", path)
        c.is_object(schema, f"{path}.input_schema")
        flat = {"type": "function", "name": c.require_key(tool, "name", path), "parameters": schema}
        flat_tools.append({**flat, "description": tool.get("description"), "strict": tool.get("strict")})
        paths.append(path)
    return _with_own_paths(lambda: tools.read_tools(flat_tools, "tools", paths))


def _with_own_paths(read: Callable[[], RequestTools]) -> RequestTools:
    """Returns the tools. An error that names `parameters`, as Responses calls the schema, names `input_schema`."""
    try:
        return read()
    except ApiError as error:
        old, new = ".parameters", ".input_schema"
        if error.param and error.param.endswith(old):
            raise ApiError(
                error.status, error.code, error.message.replace(old, new), error.param.replace(old, new)
            ) from None
        raise


def _flatten_tool_choice(choice: Mapping[str, Any] | None) -> Any:
    """Returns `tool_choice` in the form of Responses."""
    if choice is None:
        return "auto"
    if choice["type"] == "tool":
        return {"type": "function", "name": choice["name"]}
    return RESPONSES_CHOICES[choice["type"]]
