"""Sizes the KV cache by the memory that is free after loading, and the context by the cache."""

import logging
import math

import msgspec

from antiphon.engine.cache.paged import PAGE_TOKENS
from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.host.hardware import free_memory
from antiphon.engine.options import EngineOptions

log = logging.getLogger(__name__)

KV_CACHE_MEMORY_FRACTION = 0.7
"""Fraction of the memory that is free after loading that the KV cache may take, unless `kv_cache_gib` is set."""

MIN_CONTEXT_TOKENS = 256
"""Context length below which a model is not served because its KV cache is too small: no agent's prompt would fit."""


class CacheBudget(msgspec.Struct, frozen=True):
    """Capacity of the KV cache in tokens, and what determines it."""

    tokens: int
    bytes_per_token: int
    page_tokens: int
    state_tokens: int = 0

    @property
    def context(self) -> int:
        """Tokens of one sequence that fit, next to its states."""
        return max(self.tokens - self.state_tokens, 0)

    def gib_for(self, context: int) -> str:
        """Returns the GiB that hold this context, as a value for `--kv-cache-gib`: three digits, rounded up."""
        pages = -(-(context + self.state_tokens) // self.page_tokens)
        gib = pages * self.page_tokens * self.bytes_per_token / 2**30
        decimals = max(2, 2 - math.floor(math.log10(gib)))
        return f"{math.ceil(gib * 10**decimals) / 10**decimals:.{decimals}f}"


def size_cache(
    forward: ForwardPass,
    device: str,
    options: EngineOptions,
    reserved_bytes: int = 0,
    draft: ForwardPass | None = None,
) -> CacheBudget | None:
    """Returns the capacity of the KV cache, in whole pages if it is paged; None if memory is unknown.

    `reserved_bytes` of the free memory are for other caches. With a `draft` model, each token also has a place in
    a cache of that model.
    """
    if not isinstance(forward, VarlenForward | SequentialForward) or not forward.bytes_per_token:
        return None
    free = free_memory(device)
    budget = None if free is None else max(free - reserved_bytes, 0) * KV_CACHE_MEMORY_FRACTION / options.kv_cache_share
    if options.kv_cache_gib is not None:
        budget = options.kv_cache_gib * 2**30
    if budget is None:
        return None
    page_tokens = PAGE_TOKENS if forward.is_paged else 1
    token_bytes = forward.bytes_per_token + (draft.bytes_per_token if isinstance(draft, VarlenForward) else 0)
    tokens = int(budget / token_bytes)
    return CacheBudget(tokens - tokens % page_tokens, token_bytes, page_tokens, forward.state_tokens)


def choose_context(requested: int | None, supported: int) -> int:
    """Returns the requested context length in tokens, but at most what the model supports."""
    if requested is not None and requested > supported:
        message = "the context of %d tokens is cut to %d, the model's own"
        report_fallback(log, "context", message, requested, supported)
    return min(requested or supported, supported)


def limit_context(context: int, cache: CacheBudget | None, options: EngineOptions) -> int:
    """Returns the context length that fits into the cache.

    Raises `LoadError` if a context that was asked for does not fit, or not even a useful one.
    """
    if cache is None or cache.context >= context:
        return context
    required = context if options.max_model_len is not None else min(context, MIN_CONTEXT_TOKENS)
    if cache.context < required:
        raise LoadError(_describe_missing_cache(required, cache, options))
    remedy = f"; --kv-cache-gib {cache.gib_for(context)} fits all of it" if options.kv_cache_gib is not None else ""
    message = "KV cache memory limits the context to %d tokens (the model supports %d)%s"
    report_fallback(log, "context", message, cache.context, context, remedy)
    return cache.context


def _describe_missing_cache(required: int, cache: CacheBudget, options: EngineOptions) -> str:
    """Returns the error for a cache that is smaller than the required context."""
    needed = cache.gib_for(required)
    shorter = f", or lower --max-model-len to {cache.context} or less" if cache.context >= MIN_CONTEXT_TOKENS else ""
    if options.kv_cache_gib is not None:
        return (
            f"a context of {required} tokens needs a KV cache of {needed} GiB, and --kv-cache-gib "
            f"{options.kv_cache_gib:g} holds {cache.context} tokens; raise --kv-cache-gib to {needed}{shorter}"
        )
    return (
        f"a context of {required} tokens needs a KV cache of {needed} GiB, and the free memory holds "
        f"{cache.context} tokens; free some memory{shorter}, or choose a smaller model"
    )
