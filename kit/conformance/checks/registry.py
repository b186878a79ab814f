"""The checks, by the names that a suite's `checks` lists, with the request that their findings are about."""

from collections.abc import Callable

from antiphon.kit.conformance.checks import chat, content, hosted, stored
from antiphon.kit.conformance.checks.context import CheckContext
from antiphon.kit.findings import FindingList

CHECKS: dict[str, tuple[str, Callable[[CheckContext, FindingList], None]]] = {
    "get": ("GET", stored.check_stored),
    "deleted": ("DELETE", stored.check_deleted),
    "not_stored": ("GET", stored.check_not_stored),
    "input_items": ("GET input_items", stored.check_input_items),
    "unstreamed": ("without a stream", content.check_unstreamed),
    "poll": ("GET", stored.check_poll),
    "cancel": ("POST cancel", stored.check_cancel),
    "replay": ("replay", stored.check_replay),
    "conversation": ("GET conversation", stored.check_conversation),
    "model_list": ("GET models", content.check_model_list),
    "same_as_stream": ("over HTTP", content.check_same_as_stream),
    "chat": ("as chat", chat.compare_with_chat),
    "encrypted_reasoning": ("reasoning", content.check_encrypted_reasoning),
    "one_compaction": ("compaction", content.check_one_compaction),
    "approved": ("calls", hosted.check_approved),
    "codex_catalog": ("catalog", content.check_codex_catalog),
}


def run_check(name: str, context: CheckContext) -> None:
    """Runs a check, which sends requests of its own, and reports its findings. Raises as `CheckContext.fetch`."""
    place, check = CHECKS[name]
    findings = FindingList()
    check(context, findings)
    context.report(place, findings)
