"""Entries of Codex's model catalog for served models, with the instructions that Codex gives them."""

from typing import Any

from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.vision import sees_images

CODEX_EFFORTS = (
    ("low", "Short reasoning, fast answers"),
    ("medium", "Balanced reasoning"),
    ("high", "Long reasoning, slower answers"),
)
CODEX_INSTRUCTIONS = """\
You are a coding agent in the user's terminal, working in their folder with the tools you are offered.
Do what is asked, in small steps: look before you change anything, run what can be run, and read what it prints.
Change files with apply_patch where you have it. Ask only when you cannot find out yourself.
When you are done, say briefly what you did and what you could not do."""
"""Instructions that replace the 17 KB of Codex's own, which leave little of a small model's context free."""
CODEX_TOOL_OUTPUT_TOKENS = 10_000
"""Tokens of a tool's output that Codex shows to a model with a large context."""


def codex_model(name: str, model: ServedModel, settings: Settings) -> dict[str, Any]:
    """Returns a model's entry, which Codex needs before it offers "apply_patch" and trusts the context window."""
    context, sees = model.engine.info.max_model_len, sees_images(model, settings)
    return {
        "slug": name,
        "display_name": name,
        "description": model.engine.info.description or None,
        "supported_reasoning_levels": [
            {"effort": effort, "description": description} for effort, description in CODEX_EFFORTS
        ],
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
        "input_modalities": ["text", "image"] if sees else ["text"],
        "supports_image_detail_original": sees,
        "experimental_supported_tools": [],
    }
