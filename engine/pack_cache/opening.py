"""Opens the packed weights of a model for a start."""

import logging

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import name_cache_folder
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache.fingerprint import hash_checks, hash_layout, hash_model
from antiphon.engine.pack_cache.folder import find_pack_folder
from antiphon.engine.pack_cache.session import PackSession

log = logging.getLogger(__name__)

MIN_KEPT_WEIGHTS = 16_000_000
"""Weights of the smallest model whose packed weights are kept. Smaller ones are packed and checked in a second."""


def open_pack_session(checkpoint: Checkpoint | None, options: EngineOptions, kernels: Kernels | None) -> PackSession:
    """Returns the packed weights that an earlier start has kept, or a session that keeps those of this start.

    Nothing is kept without compiled kernels, whose layout the weights have, or for a small model.
    """
    if checkpoint is None or kernels is None or options.quantization is None or not options.pack_cache:
        return PackSession(None)
    weights = sum(checkpoint.elements_by_dtype.values())
    if weights < MIN_KEPT_WEIGHTS:
        return PackSession(None)
    folder = find_pack_folder()
    if folder is None:
        report_fallback(
            log,
            "pack_cache",
            "packed weights are not kept: %s is no folder that only this user can write to",
            name_cache_folder(),
        )
        return PackSession(None)
    try:
        layout = hash_layout(options.quantization, kernels.lanes)
        key, checks_key = f"{hash_model(checkpoint.path)}-{layout}", hash_checks(options)
    except OSError as error:
        report_fallback(log, "pack_cache", "packed weights are not kept: %s", one_line(error))
        return PackSession(None)
    return PackSession(folder, key, checks_key, int(options.pack_cache_gib * 2**30), weights)
