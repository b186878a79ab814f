"""Served models in the shape of Codex's model catalogue, with the prompt that Codex gives them."""

from typing import Any

from antiphon.app.model_registry import ServedModel
from antiphon.app.settings import Settings

CODEX_EFFORTS = (
    ("low", "Think little, answer soon"),
    ("medium", "As it comes"),
    ("high", "Think long"),
)
CODEX_INSTRUCTIONS = """You are a coding agent in the user's terminal, working in their folder with the tools you are offered.
Do what is asked, in small steps: look before you change anything, run what can be run, and read what it prints.
Change files with apply_patch where you have it. Ask only when you cannot find out yourself.
When you are done, say briefly what you did and what you could not do."""
"""What Codex tells a model in place of its own seventeen kilobytes, which leave a small one little room."""
CODEX_TOOL_OUTPUT_TOKENS = 10_000
"""Tokens of a tool's output that Codex shows, where the context is large."""


def codex_model(name: str, model: ServedModel, settings: Settings) -> dict[str, Any]:
    """What Codex wants to know of a model before it offers it `apply_patch` and trusts its context window."""
    context = model.engine.info.max_model_len
    return {
        "slug": name,
        "display_name": name,
        "description": model.engine.info.description or None,
        "supported_reasoning_levels": [{"effort": effort, "description": says} for effort, says in CODEX_EFFORTS],
        "default_reasoning_level": "medium",
        "shell_type": "default",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": CODEX_INSTRUCTIONS,
        "supports_reasoning_summaries": settings.reasoning_output != "content",
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": min(CODEX_TOOL_OUTPUT_TOKENS, context // 4)},
        "supports_parallel_tool_calls": True,
        "context_window": context,
        "input_modalities": ["text"],
        "experimental_supported_tools": [],
    }
