"""Builds the core of an embedding or reranking model, in its worker process."""

import logging
from pathlib import Path
from typing import Any

from antiphon.engine.embeddings.core import EncoderCore
from antiphon.engine.embeddings.repository import EncoderKind, read_repository
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo

log = logging.getLogger(__name__)

CORE_FACTORIES: dict[EncoderKind, str] = {
    "embedding": f"{__name__}:build_embedding_core",
    "rerank": f"{__name__}:build_rerank_core",
}
"""Import paths of the functions below, for `engine.process.client.ProcessEngine`."""
MAX_PASS_TOKENS = {"cpu": 1024, "cuda": 16_384}
"""Tokens per pass by device, padding included; a pass with one input may have more. Larger passes have more padding: on
a CPU, 200 paragraphs took a fifth more time with 4096."""


def build_embedding_core(folder: Path, options: EngineOptions) -> EncoderCore:
    """Builds the core of an embedding model. Raises `LoadError`."""
    return _build_core(folder, options, "embedding")


def build_rerank_core(folder: Path, options: EngineOptions) -> EncoderCore:
    """Builds the core of a reranking model. Raises `LoadError`."""
    return _build_core(folder, options, "rerank")


def _build_core(folder: Path, options: EngineOptions, kind: EncoderKind) -> EncoderCore:
    modules = read_repository(folder, kind)
    log.info("importing torch")
    try:
        import torch  # noqa: PLC0415  # an extra, which takes seconds to import

        from antiphon.engine.embeddings.model import load_encoder  # noqa: PLC0415
        from antiphon.engine.host.hardware import physical_cores  # noqa: PLC0415
        from antiphon.engine.host.thread_governor import ThreadGovernor  # noqa: PLC0415
    except ImportError as error:
        remedy = "install torch and transformers, or use `make serve`"
        raise LoadError(f"the torch engine is not installed ({error}): {remedy}") from None
    torch.set_num_threads(options.threads or physical_cores())
    log.info("loading weights")
    model, encoder = load_encoder(modules, kind, options.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embeddings: Any = model.get_input_embeddings()
    adapts_threads = options.threads is None and model.device.type == "cpu"
    governor = ThreadGovernor(torch.get_num_threads(), torch.set_num_threads)
    info = EngineInfo(
        max_model_len=modules.max_tokens,
        vocab_size=int(embeddings.weight.shape[0]),
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        description=f"{type(model).__name__}, {parameters / 1e6:.1f} M parameters; {modules.note}",
        architecture=str(model.config.model_type),
        vector_size=encoder.vector_size,
    )
    return EncoderCore(
        encoder.encode_batch,
        info,
        max_num_seqs=options.max_num_seqs,
        max_waiting=options.max_waiting,
        max_batched_tokens=MAX_PASS_TOKENS.get(model.device.type, MAX_PASS_TOKENS["cpu"]),
        before_pass=governor.update if adapts_threads else lambda: None,
    )
