"""Model info read from a model's files before it is loaded, so that the server can read its first request at once."""

from typing import Any

from antiphon.engine.checkpoint.context_length import read_context_length
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.checkpoint.generation_settings import read_eos_ids, read_max_repetition, sampling_defaults
from antiphon.engine.checkpoint.vision_families import VERIFIED_TYPES, read_soft_ids
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo


def read_static_info(checkpoint: Checkpoint, options: EngineOptions) -> EngineInfo | None:
    """Returns the properties that the engine will report; None if the files do not have them all.

    The engine may shorten the context if its KV cache is too small.
    """
    config, generation = checkpoint.config, checkpoint.generation_config
    nested = config.get("text_config")
    text_config: dict[str, Any] = nested if isinstance(nested, dict) else config
    context, vocab_size = read_context_length(text_config.get), text_config.get("vocab_size")
    if context is None or not isinstance(vocab_size, int):
        return None
    suppressed = generation.get("suppress_tokens") or ()
    soft_ids = _expect_soft_ids(config, options, vocab_size)
    return EngineInfo(
        max_model_len=min(options.max_model_len or context, context),
        vocab_size=vocab_size,
        default_sampling=sampling_defaults(generation),
        eos_ids=read_eos_ids(generation, text_config.get("eos_token_id", config.get("eos_token_id"))),
        suppressed_ids=(*(int(token) for token in suppressed if 0 <= int(token) < vocab_size), *soft_ids),
        soft_ids=soft_ids,
        max_repetition_tokens=read_max_repetition(generation),
        image_form="expanded" if soft_ids else "none",
        architecture=str(config["model_type"]),
    )


def _expect_soft_ids(config: dict[str, Any], options: EngineOptions, vocab_size: int) -> tuple[int, ...]:
    """Returns the ids that stand for pictures, video and audio, if the engine will take pictures."""
    if not options.keep_vision_tower or "vision_config" not in config or config["model_type"] not in VERIFIED_TYPES:
        return ()
    return tuple(token for token in read_soft_ids(config.get) if token < vocab_size)
