"""`POST /v1/chat/completions`: from the body to the same `TurnSpec`."""

import json
from collections.abc import Mapping
from typing import Any

from antiphon.app.errors import invalid_value, missing_field
from antiphon.app.model_registry import ModelRegistry
from antiphon.app.requests import constraints, media, shared, tools
from antiphon.app.requests import validators as c
from antiphon.app.requests.chat_messages import read_messages
from antiphon.app.requests.constraints import OutputConstraint
from antiphon.app.requests.fields import CHAT_FIELDS, check_fields, refuse_unsupported
from antiphon.app.requests.tool_choice import read_tool_choice
from antiphon.app.requests.tools import RequestTools
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.settings import DEFAULT_SETTINGS, Settings
from antiphon.harmony.format import PromptInput


def read_chat_request(
    body: Mapping[str, Any], catalogue: ModelRegistry, settings: Settings = DEFAULT_SETTINGS
) -> ParsedRequest:
    """Check everything that can be checked before the engine is asked. Raises `ApiError`."""
    check_fields(CHAT_FIELDS, body)
    model = catalogue.find_model(body.get("model"))
    shared.check_stream_options(body)
    offered = _read_tools(body.get("tools") or ())
    tools.check_choice(_flatten_tool_choice(body.get("tool_choice")), offered)
    if body.get("messages") is None:
        raise missing_field("messages")
    said = read_messages(body["messages"])
    media.check_media(body["messages"], "messages", refused=settings.unsupported_media == "refuse")
    asked, top, effort = _token_limit(body), _top_logprobs(body), _reasoning_effort(body)
    table = offered.build_table()
    refuse_unsupported(CHAT_FIELDS, body)
    called = read_tool_choice(_flatten_tool_choice(body.get("tool_choice")), table)
    shape = _response_format(body.get("response_format"))
    kept = constraints.tool_constraints(offered)
    if (answer := constraints.answer_schema(shape)) is not None:
        kept.append(OutputConstraint("schema", json.dumps(answer), "response_format.json_schema.schema"))
    limit = asked if asked is not None else settings.default_max_output_tokens
    chosen = shared.read_sampling(body, model.engine.info.default_sampling, limit, top)
    head = shared.base_response(
        body, chosen, tools=offered.echo, text=shared.PLAIN_TEXT_CONFIG, max_output_tokens=asked,
        reasoning=shared.reasoning_config(effort, None), store=False,
    )  # fmt: skip
    spec = TurnSpec(
        base_response=head,
        prompt_input=PromptInput(
            items=said,
            tools=table,
            tool_choice=called.mode,
            allowed_tools=called.allowed_tools,
            effort=effort,
            answer_schema=answer,
            single_call=body.get("parallel_tool_calls") is False,
        ),
        constraints=tuple(kept),
        sampling=chosen,
        stop_strings=shared.read_stop_strings(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else None,
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        obfuscate=shared.wants_obfuscation(body),
        n=body.get("n") or 1,
        logprobs=top is not None,
    )
    return ParsedRequest(model, spec)


def _read_tools(sent: Any) -> RequestTools:
    """Chat nests what Responses has flat: `{"type", "function": {…}}`, `{"type", "custom": {…}}`."""
    flat, places = [], []
    for index, tool in enumerate(sent):
        place = f"tools[{index}]"
        kind = c.require_key(tool, "type", place)
        c.one_of(("function", "custom"))(kind, f"{place}.type")
        inner = c.require_key(tool, kind, place)
        c.is_object(inner, f"{place}.{kind}")
        flat.append(_flatten_grammar({**inner, "type": kind}))
        places.append(f"{place}.{kind}")
    return tools.read_tools(flat, "tools", places)


def _flatten_grammar(tool: dict[str, Any]) -> dict[str, Any]:
    """A custom tool's grammar, which chat nests once more."""
    shape = tool.get("format")
    if isinstance(shape, dict) and isinstance(shape.get("grammar"), dict):
        return {**tool, "format": {**shape["grammar"], "type": "grammar"}}
    return tool


def _flatten_tool_choice(choice: Any) -> Any:
    """A named tool, or some that are allowed, as Responses names them."""
    if not isinstance(choice, dict):
        return choice
    inner = choice.get(str(choice.get("type")))
    if not isinstance(inner, dict):
        return choice
    flat = {"type": choice["type"], **inner}
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flatten_tool_choice(tool) for tool in flat["tools"]]
    return flat


def _response_format(sent: Any) -> dict[str, Any] | None:
    """`response_format` as Responses has it."""
    if not isinstance(sent, dict):
        return None
    return {"type": sent["type"], **sent["json_schema"]} if sent["type"] == "json_schema" else sent


def _token_limit(body: Mapping[str, Any]) -> int | None:
    older, newer = body.get("max_tokens"), body.get("max_completion_tokens")
    if older is not None and newer is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise invalid_value("max_tokens", message)
    found: int | None = newer if newer is not None else older
    return found


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted, most = bool(body.get("logprobs")), body.get("top_logprobs")
    if most is not None and not wanted:
        raise invalid_value("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    return (most or 0) if wanted else None


def _reasoning_effort(body: Mapping[str, Any]) -> str | None:
    """How hard to think. Thinking switched off wins over an effort."""
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False:
        return "none"
    effort: str | None = body.get("reasoning_effort")
    return effort
