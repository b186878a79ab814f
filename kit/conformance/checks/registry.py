"""The checks, by the names that a suite's `checks` lists. Each sends requests of its own."""

from collections.abc import Callable

from antiphon.kit.conformance.checks import chat, content, stored
from antiphon.kit.conformance.checks.context import CheckContext

CHECKS: dict[str, Callable[[CheckContext], None]] = {
    "get": stored.check_stored,
    "deleted": stored.check_deleted,
    "not_stored": stored.check_not_stored,
    "input_items": stored.check_input_items,
    "unstreamed": content.check_unstreamed,
    "poll": stored.check_poll,
    "cancel": stored.check_cancel,
    "replay": stored.check_replay,
    "conversation": stored.check_conversation,
    "model_list": content.check_model_list,
    "same_as_stream": content.check_same_as_stream,
    "chat": chat.compare_with_chat,
    "encrypted_reasoning": content.check_encrypted_reasoning,
    "one_compaction": content.check_one_compaction,
    "codex_catalog": content.check_codex_catalog,
}
"""Checks by the names that suites use."""
