"""Diagnosis of the prompt cache: what a prompt has in common with an earlier response, and which setting differs.

It compares the token ids that the model reads with those that it read and generated, so the numbers are exact and do
not depend on the engine. Only one thing does: whether the engine still has the common tokens.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.requests.responses.compaction import is_summary
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.prompts.prompt_token_cache import FinishedTurn, common_length
from antiphon.events.inputs import AnyInput
from antiphon.events.response import CacheHit, CacheMiss, CacheMissReason, PromptCacheDiagnostics


def compare_prompt(prompt: TurnPrompt, settings: dict[str, Any], earlier: FinishedTurn) -> TurnPrompt:
    """Returns the prompt with its diagnosis, as if the engine still had all that it has computed for an earlier turn.

    `settings` are those of the prompt, from `list_settings`.
    """
    tokens = prompt.prompt.tokens
    # The engine computes nothing for the last token that it generates.
    computed = (*earlier.turn_prompt.prompt.tokens, *earlier.generated_tokens[:-1])
    common = common_length(computed, tokens) if settings["model"] == earlier.settings["model"] else 0
    diagnostics: PromptCacheDiagnostics = CacheHit()
    if common < min(len(computed), len(tokens)):
        diagnostics = CacheMiss(
            reason=_find_reason(prompt, settings, earlier),
            cache_missed_tokens=len(tokens) - common,
            comparison_reusable_tokens=common,
        )
    return msgspec.structs.replace(prompt, diagnostics=diagnostics, num_comparable=min(common, len(tokens) - 1))


def list_settings(model_name: str, text: Any) -> dict[str, Any]:
    """Returns what a prompt depends on besides its conversation. `text`: the text settings of its Response."""
    sent = text or {}
    return {"model": model_name, "format": sent.get("format"), "verbosity": sent.get("verbosity")}


def _find_reason(prompt: TurnPrompt, settings: dict[str, Any], earlier: FinishedTurn) -> CacheMissReason:
    """Returns the first setting that differs, in the order of the API."""
    now, before = prompt.prompt_input, earlier.turn_prompt.prompt_input
    same: dict[CacheMissReason, bool] = {
        "model_changed": settings["model"] == earlier.settings["model"],
        "tools_changed": _list_shown_tools(prompt) == _list_shown_tools(earlier.turn_prompt),
        "text_format_changed": settings["format"] == earlier.settings["format"],
        "reasoning_effort_changed": now.effort == before.effort,
        "verbosity_changed": settings["verbosity"] == earlier.settings["verbosity"],
        "context_compacted": _list_summaries(now.items) == _list_summaries(before.items),
    }
    return next((reason for reason, is_same in same.items() if not is_same), "input_changed")


def _list_shown_tools(prompt: TurnPrompt) -> Sequence[Any]:
    return () if prompt.prompt_input.tool_choice == "none" else tuple(prompt.prompt_input.tools)


def _list_summaries(items: Sequence[AnyInput]) -> list[AnyInput]:
    return [item for item in items if is_summary(item)]
