"""`POST /v1/chat/completions`: from the body to the same `TurnSpec`."""

import json
from collections.abc import Mapping
from typing import Any

from antiphon.app.errors import invalid_value, missing
from antiphon.app.model_registry import Catalogue
from antiphon.app.requests import constraints, media, shared, tools
from antiphon.app.requests import validators as c
from antiphon.app.requests.chat_messages import read as read_messages
from antiphon.app.requests.constraints import Promise
from antiphon.app.requests.fields import CHAT, check, refuse
from antiphon.app.requests.responses import Asked
from antiphon.app.requests.tools import Tools
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.settings import DEFAULT_SETTINGS, Settings
from antiphon.harmony.format import PromptInput


def read(body: Mapping[str, Any], catalogue: Catalogue, settings: Settings = DEFAULT_SETTINGS) -> Asked:
    """Check everything that can be checked before the engine is asked. Raises `ApiError`."""
    check(CHAT, body)
    model = catalogue.find(body.get("model"))
    shared.check_stream_options(body)
    offered = _tools(body.get("tools") or ())
    tools.check_choice(_flat(body.get("tool_choice")), offered)
    if body.get("messages") is None:
        raise missing("messages")
    said = read_messages(body["messages"])
    media.check(body["messages"], "messages", refused=settings.unsupported_media == "refuse")
    asked, top, effort = _limit(body), _top_logprobs(body), _effort(body)
    table = offered.table()
    refuse(CHAT, body)
    called = constraints.choice(_flat(body.get("tool_choice")), table)
    shape = _shape(body.get("response_format"))
    kept = constraints.of_tools(offered)
    if (answer := constraints.answer(shape)) is not None:
        kept.append(Promise("schema", json.dumps(answer), "response_format.json_schema.schema"))
    limit = asked if asked is not None else settings.default_max_output_tokens
    chosen = shared.sampling(body, model.engine.info.default_sampling, limit, top)
    head = shared.head(
        body, chosen, tools=offered.echo, text=shared.PLAIN, max_output_tokens=asked,
        reasoning=shared.reasoning(effort, None), store=False,
    )  # fmt: skip
    spec = TurnSpec(
        head=head,
        conversation=PromptInput(
            items=said,
            tools=table,
            tool_choice=called.mode,
            allowed_tools=called.only,
            effort=effort,
            answer_schema=answer,
            single_call=body.get("parallel_tool_calls") is False,
        ),
        promises=tuple(kept),
        sampling=chosen,
        stop=shared.stops(body),
        stream=bool(body.get("stream")),
        max_tool_calls=1 if body.get("parallel_tool_calls") is False else None,
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        obfuscate=shared.obfuscate(body),
        n=body.get("n") or 1,
        logprobs=top is not None,
    )
    return Asked(model, spec)


def _tools(sent: Any) -> Tools:
    """Chat nests what Responses has flat: `{"type", "function": {…}}`, `{"type", "custom": {…}}`."""
    flat, places = [], []
    for index, tool in enumerate(sent):
        place = f"tools[{index}]"
        kind = c.needed(tool, "type", place)
        c.one_of(("function", "custom"))(kind, f"{place}.type")
        inner = c.needed(tool, kind, place)
        c.obj(inner, f"{place}.{kind}")
        flat.append(_grammar({**inner, "type": kind}))
        places.append(f"{place}.{kind}")
    return tools.read(flat, "tools", places)


def _grammar(tool: dict[str, Any]) -> dict[str, Any]:
    """A custom tool's grammar, which chat nests once more."""
    shape = tool.get("format")
    if isinstance(shape, dict) and isinstance(shape.get("grammar"), dict):
        return {**tool, "format": {**shape["grammar"], "type": "grammar"}}
    return tool


def _flat(choice: Any) -> Any:
    """A named tool, or some that are allowed, as Responses names them."""
    if not isinstance(choice, dict):
        return choice
    inner = choice.get(str(choice.get("type")))
    if not isinstance(inner, dict):
        return choice
    flat = {"type": choice["type"], **inner}
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat(tool) for tool in flat["tools"]]
    return flat


def _shape(sent: Any) -> dict[str, Any] | None:
    """`response_format` as Responses has it."""
    if not isinstance(sent, dict):
        return None
    return {"type": sent["type"], **sent["json_schema"]} if sent["type"] == "json_schema" else sent


def _limit(body: Mapping[str, Any]) -> int | None:
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


def _effort(body: Mapping[str, Any]) -> str | None:
    """How hard to think. Thinking switched off wins over an effort."""
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False:
        return "none"
    effort: str | None = body.get("reasoning_effort")
    return effort
