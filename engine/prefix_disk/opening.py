"""Opens the prefix cache on disk for a model that is ready to compute."""

import logging
from collections.abc import Callable

import torch

from antiphon.engine.cache.contiguous import ContiguousKVCache, LayerLayout
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass, SequenceInput
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import name_cache_folder
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.fingerprint import hash_model, hash_numbers
from antiphon.engine.prefix_disk.folder import PageFolder, find_page_folder, load_or_create_key
from antiphon.engine.prefix_disk.prefix_disk import PrefixDisk

log = logging.getLogger(__name__)

PROBE_TOKEN = 1


def open_prefix_disk(
    checkpoint: Checkpoint | None, options: EngineOptions, forward: ForwardPass, kernels: Kernels | None
) -> PrefixDisk | None:
    """Returns the prefix cache on disk; None if it is off, or impossible: one line of the log says why."""
    if options.prefix_cache_disk is None:
        return None
    folder = find_page_folder()
    reason = _explain_unkept(checkpoint, options, forward)
    if reason is None and folder is None:
        reason = f"{name_cache_folder()} is no folder that only this user can write to"
    if reason is None:
        assert checkpoint is not None and folder is not None and isinstance(forward, VarlenForward)
        try:
            secret = options.prefix_cache_key.value or load_or_create_key(folder)
            pages = PageFolder(folder, int(options.prefix_cache_disk * 2**30))
            identity = (hash_model(checkpoint.path), hash_numbers(options, _describe_form(forward, options, kernels)))
            return PrefixDisk(pages, secret, identity, probe_layout(forward), _new_cache_of(forward))
        except OSError as error:
            reason = one_line(error)
    report_fallback(log, "prefix_disk", "prefixes are not kept on disk: %s", reason)
    return None


def _explain_unkept(checkpoint: Checkpoint | None, options: EngineOptions, forward: ForwardPass) -> str | None:
    if checkpoint is None:
        return "the model has no files that identify it"
    if not options.enable_prefix_caching or not forward.supports_chunked_prefill:
        return "the model computes whole prompts only, and hence reuses no prefix"
    if forward.state_tokens:
        return "layers of the model have a state, which cannot be cut to pages"
    if forward.is_paged or not isinstance(forward, VarlenForward):
        return "only caches in the memory of the CPU are"
    return None


@torch.inference_mode()
def probe_layout(forward: ForwardPass) -> tuple[LayerLayout, ...]:
    """Returns the layout of the caches of a model, from a pass over one token."""
    cache = _new_cache_of(forward)(1)
    forward.run([SequenceInput(cache, [PROBE_TOKEN], 1)])
    return cache.layout


def _new_cache_of(forward: ForwardPass) -> Callable[[int], ContiguousKVCache]:
    new_cache: Callable[[int], ContiguousKVCache] = forward.new_cache
    return new_cache


def _describe_form(forward: VarlenForward, options: EngineOptions, kernels: Kernels | None) -> str:
    """Returns what the bits of keys and values depend on besides the files of the model, the code and the libraries."""
    threads = torch.get_num_threads() if options.deterministic else 0
    return repr(
        (
            *(type(forward).__name__, forward.uses_kernels, forward.prompt_alignment),
            *(forward.batch_invariant, forward.one_token_passes, forward.two_way_layers),
            *(None if kernels is None else kernels.lanes, options.max_model_len, options.deterministic, threads),
            options.allow_lora_updates or bool(options.lora_modules),
        )
    )
