"""Checks of what a reply holds, and of the same turn in other forms: in one piece, and over HTTP."""

from antiphon.kit.conformance.checks.context import CheckContext
from antiphon.kit.conformance.exchanges import RESPONSES_PATH, check_arrival, read_json_reply, read_stream
from antiphon.kit.findings import FindingList, quote, quote_start
from antiphon.kit.json_values import Json, as_list, as_objects

CATALOG_KEYS = (
    "slug display_name description supported_reasoning_levels shell_type visibility supported_in_api priority "
    "availability_nux upgrade base_instructions supports_reasoning_summaries support_verbosity default_verbosity "
    "apply_patch_tool_type truncation_policy supports_parallel_tool_calls context_window "
    "experimental_supported_tools"
).split()
"""Keys that an entry of Codex's catalog must have, or Codex 0.169 ignores it."""


def check_unstreamed(context: CheckContext, findings: FindingList) -> None:
    """Checks that the same request without a stream gets a body of the same shape as the terminal response."""
    request = {key: value for key, value in context.exchange.request.items() if key != "stream_options"}
    request["stream"] = False
    reply = context.fetch("POST", RESPONSES_PATH, request)
    if reply.status != 200:
        findings.add("http-status", "200 without a stream, as with one", f"{reply.status}: {quote_start(reply.body)}")
    else:
        check_arrival(reply, findings)
        body = read_json_reply(RESPONSES_PATH, request, reply, findings)
        _compare_keys(context.exchange.value, body, "response", findings)
        pairs = zip(as_list(context.exchange.value.get("output")), as_list(body.get("output")), strict=False)
        for streamed, other in pairs:
            if isinstance(streamed, dict) and isinstance(other, dict) and _looks_alike(streamed, other):
                _compare_keys(streamed, other, f"item {streamed.get('type')}", findings)


def check_same_as_stream(context: CheckContext, findings: FindingList) -> None:
    """Checks that a turn over a WebSocket has the events and keys that the same turn over HTTP has."""
    request = {key: value for key, value in context.exchange.request.items() if key not in ("type", "generate")}
    reply = context.fetch("POST", RESPONSES_PATH, request | {"stream": True})
    if reply.status != 200:
        findings.add("http-status", "200, as over the WebSocket", f"{reply.status}: {quote_start(reply.body)}")
    over_http = read_stream(reply.body, request, FindingList()) if reply.status == 200 else context.exchange
    by_type = {str(event.get("type")): event for event in over_http.events}
    for event in context.exchange.events:
        other = by_type.get(str(event.get("type")))
        if other is not None and other.keys() != event.keys():
            findings.add("websocket-differs", quote(sorted(other)), quote(sorted(event)), str(event.get("type")))
    _compare_keys(over_http.value, context.exchange.value, "response", findings, "websocket-differs")


def check_model_list(context: CheckContext, findings: FindingList) -> None:
    """Checks that each entry of the list of models has an id and says that it is a model."""
    for entry in as_list(context.exchange.value.get("data")):
        if not isinstance(entry, dict) or not entry.get("id") or entry.get("object") != "model":
            findings.add("live-list", '{"id", "object": "model"}', quote(entry), "data")


def check_encrypted_reasoning(context: CheckContext, findings: FindingList) -> None:
    """Checks that reasoning has the encrypted copy that the request includes."""
    for item in as_objects(context.exchange.value.get("output")):
        if item.get("type") == "reasoning" and not item.get("encrypted_content"):
            findings.add("live-encrypted-missing", "encrypted_content", "none", f"reasoning {item.get('id')}")


def check_one_compaction(context: CheckContext, findings: FindingList) -> None:
    """Checks that the output is one compaction with its encrypted content."""
    output = as_objects(context.exchange.value.get("output"))
    kinds = [item.get("type") for item in output]
    if kinds != ["compaction"] or not output[0].get("encrypted_content"):
        findings.add("live-compaction", "one compaction with encrypted_content", quote(output))


def check_codex_catalog(context: CheckContext, findings: FindingList) -> None:
    """Checks the entries of Codex's catalog beside the list of models, if there is one."""
    for entry in as_list(context.exchange.value.get("models")):
        missing = [key for key in CATALOG_KEYS if not isinstance(entry, dict) or key not in entry]
        if missing and "slug" not in missing:  # an entry without a slug is another client's
            findings.add("live-catalog", f"the keys {', '.join(missing)}", "none of them", str(entry.get("slug")))


def _compare_keys(
    expected: Json, actual: Json, subject: str, findings: FindingList, code: str = "body-keys-differ"
) -> None:
    if missing := expected.keys() - actual.keys():
        findings.add(code, f"the keys {', '.join(sorted(missing))}", "none of them", f"{subject} lacks")
    if extra := actual.keys() - expected.keys():
        findings.add(code, f"no keys {', '.join(sorted(extra))}", "them", f"{subject} has")


def _looks_alike(one: Json, other: Json) -> bool:
    keys = ("type", "status", "role", "name")
    return all(one.get(key) == other.get(key) for key in keys) and ("phase" in one) == ("phase" in other)
