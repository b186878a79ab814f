"""Samplers by their standard names, as `OTEL_TRACES_SAMPLER` gives them. They decide as those of the SDK."""

from collections.abc import Callable, Mapping
from functools import partial

from antiphon.app.turn_types.tracing.context import SpanIds

Sampler = Callable[[SpanIds | None, int], bool]
"""Tells whether a span is sampled, by its parent in another program and the id of its trace."""
_RATIO_BITS = 64
DEFAULT_SAMPLER = "parentbased_always_on"


class SamplerError(ValueError):
    """A sampler cannot be used. The message is one line for the operator."""


def create_sampler(variables: Mapping[str, str]) -> Sampler:
    """Returns the sampler that the environment names. Raises `SamplerError`."""
    name = variables.get("OTEL_TRACES_SAMPLER", "").strip().lower() or DEFAULT_SAMPLER
    is_parent_based, kind = name.startswith("parentbased_"), name.removeprefix("parentbased_")
    roots: dict[str, Callable[[], Callable[[int], bool]]] = {
        "always_on": lambda: lambda _: True,
        "always_off": lambda: lambda _: False,
        "traceidratio": lambda: partial(_is_below, _read_bound(variables.get("OTEL_TRACES_SAMPLER_ARG", ""))),
    }
    if kind not in roots:
        known = ", ".join((*roots, *(f"parentbased_{each}" for each in roots)))
        raise SamplerError(f"OTEL_TRACES_SAMPLER: no sampler has this name; use one of {known}")
    decide = roots[kind]()
    if is_parent_based:
        return lambda parent, trace_id: decide(trace_id) if parent is None else parent.is_sampled
    return lambda _, trace_id: decide(trace_id)


def _is_below(bound: int, trace_id: int) -> bool:
    return trace_id & ((1 << _RATIO_BITS) - 1) < bound


def _read_bound(text: str) -> int:
    """Returns the number below which the lower half of an id is sampled. Raises `SamplerError`."""
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise SamplerError("OTEL_TRACES_SAMPLER_ARG: the ratio is a number from 0 to 1")
    return round(ratio * (1 << _RATIO_BITS))
