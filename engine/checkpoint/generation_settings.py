"""Reads the settings of a model's generation_config.json. Needs no torch."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Sampling

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation: Mapping[str, Any]) -> Sampling:
    """Sampling defaults of a generation_config.json; an explicit `do_sample: false` means temperature 0.

    `max_new_tokens` limits the turns whose request sets no limit.
    """
    values = {name: generation[name] for name in SAMPLING_FIELDS if isinstance(generation.get(name), (int, float))}
    limit = generation.get("max_new_tokens")
    if isinstance(limit, int) and limit > 0:
        values["max_tokens"] = limit
    if generation.get("do_sample") is False:
        values["temperature"] = 0.0
    return msgspec.convert(values, Sampling, strict=False)


def read_max_repetition(generation: Mapping[str, Any]) -> int:
    """Returns this server's own setting `max_repetition_tokens`, see `EngineInfo`; 0 if there is none."""
    limit = generation.get("max_repetition_tokens")
    return limit if isinstance(limit, int) and limit > 0 else 0


def read_eos_ids(generation: Mapping[str, Any], default: int | list[int] | None) -> tuple[int, ...]:
    """Token ids that end an answer. `default`: those of the model's configuration. Raises `LoadError`."""
    eos = generation.get("eos_token_id", default)
    return read_token_ids("eos_token_id", [eos] if isinstance(eos, int) else eos)


def read_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Returns a setting that is a list of token ids, or None. Raises `LoadError`."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(token, int) for token in value):
        raise LoadError(f"{name} is no list of token ids; fetch config.json and generation_config.json again")
    return tuple(value)
