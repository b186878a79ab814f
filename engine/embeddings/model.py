"""Loads an embedding or reranking model, and computes vectors and scores of padded batches."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTextEncoding, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from antiphon.engine.embeddings.repository import EncoderKind, SentenceModules, uses_identity
from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.errors import LoadError, is_out_of_memory, one_line
from antiphon.engine.load.architectures import LOAD_OPTIONS
from antiphon.engine.load.finite_logits import check_finite_weights
from antiphon.engine.load.load_method import choose_device
from antiphon.engine.load.loading_report import describe_missing, list_missing
from antiphon.engine.regular_files import read_json_object

log = logging.getLogger(__name__)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "GELU": nn.functional.gelu,
    "Identity": lambda vectors: vectors,
    "ReLU": torch.relu,
    "SiLU": nn.functional.silu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}
"""Activation functions of dense modules, by the names of their classes."""


class PaddedBatch:
    """Token ids of several inputs, padded at the end to the longest one. `mask` is None if none is padded."""

    def __init__(self, inputs: Sequence[EncoderInput], pad_id: int, device: torch.device) -> None:
        self.lengths = torch.tensor([len(each.tokens) for each in inputs])
        longest = int(self.lengths.max())
        rows = [list(each.tokens) + [pad_id] * (longest - len(each.tokens)) for each in inputs]
        self.ids = torch.tensor(rows, device=device)
        self.lengths = self.lengths.to(device)
        self.mask = None
        if int(self.lengths.min()) < longest:
            self.mask = (torch.arange(longest, device=device) < self.lengths[:, None]).long()
        self.type_ids = None
        if any(each.first_part is not None for each in inputs):
            starts = [longest if each.first_part is None else each.first_part for each in inputs]
            in_second = torch.arange(longest)[None] >= torch.tensor(starts)[:, None]
            self.type_ids = (in_second & (torch.arange(longest) < self.lengths.cpu()[:, None])).long().to(device)


class TextEncoder:
    """An embedding model: a transformer, pooling, and dense layers."""

    def __init__(self, model: PreTrainedModel, modules: SentenceModules) -> None:
        self._model, self._modules = model, modules
        self._pad_id = getattr(model.config, "pad_token_id", None) or 0
        self._dense = [_load_dense(path, model.device) for path in modules.dense]
        self.vector_size = len(self._pool_and_project(EncoderInput(tokens=(0,)))[0])

    def _pool_and_project(self, *inputs: EncoderInput) -> Tensor:
        """Returns one vector per input, in float32, before it is normalized."""
        batch = PaddedBatch(inputs, self._pad_id, self._model.device)
        with torch.inference_mode():
            hidden = self._model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
            pooled = pool_tokens(hidden.float(), batch.lengths, self._modules.pooling)
            for layer in self._dense:
                pooled = layer(pooled)
        return pooled

    def encode_batch(self, inputs: Sequence[EncoderInput], options: Sequence[VectorOptions]) -> list[bytes]:
        """Returns the vectors of several inputs, each finished by its options."""
        vectors = self._pool_and_project(*inputs).cpu()
        return [_to_bytes(self._finish_vector(*pair)) for pair in zip(vectors, options, strict=True)]

    def _finish_vector(self, vector: Tensor, options: VectorOptions) -> Tensor:
        normalize = options.normalize
        if normalize is None:
            normalize = self._modules.normalize or options.dimensions is not None
        vector = vector[: options.dimensions]
        return nn.functional.normalize(vector, dim=0) if normalize else vector


class PairScorer:
    """A reranking model: scores pairs of texts."""

    vector_size = 1

    def __init__(self, model: PreTrainedModel, modules: SentenceModules) -> None:
        self._model = model
        if getattr(model.config, "pad_token_id", None) is None:
            model.config.pad_token_id = 0  # the model searches for it to find the last token
        self._pad_id = model.config.pad_token_id
        self._takes_types = (getattr(model.config, "type_vocab_size", None) or 0) > 1
        self._activation = ACTIVATIONS["Identity" if uses_identity(modules.config) else "Sigmoid"]

    def encode_batch(self, inputs: Sequence[EncoderInput], _: Sequence[VectorOptions]) -> list[bytes]:
        """Returns the scores of several pairs."""
        batch = PaddedBatch(inputs, self._pad_id, self._model.device)
        types = {"token_type_ids": batch.type_ids} if self._takes_types and batch.type_ids is not None else {}
        with torch.inference_mode():
            logits = self._model(input_ids=batch.ids, attention_mask=batch.mask, **types).logits.float()
            return [_to_bytes(score) for score in self._activation(logits).cpu()]


def pool_tokens(hidden: Tensor, lengths: Tensor, modes: Sequence[str]) -> Tensor:
    """Joins the vectors of each input's tokens to one. `hidden` is padded at the end; see `POOLING_KEYS`."""
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    mask = (positions < lengths[:, None])[:, :, None]
    counts = lengths[:, None].to(hidden.dtype)
    pooled = []
    for mode in modes:
        if mode == "cls":
            pooled.append(hidden[:, 0])
        elif mode == "lasttoken":
            pooled.append(hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1])
        elif mode == "max":
            pooled.append(hidden.masked_fill(~mask, -torch.inf).amax(1))
        elif mode == "weightedmean":
            weights = ((positions + 1)[None, :, None] * mask).to(hidden.dtype)
            pooled.append((hidden * weights).sum(1) / weights.sum(1))
        else:
            sums = hidden.masked_fill(~mask, 0).sum(1)
            pooled.append(sums / (counts if mode == "mean" else counts.sqrt()))
    return torch.cat(pooled, 1)


def load_encoder(
    modules: SentenceModules, kind: EncoderKind, device: str | None
) -> tuple[PreTrainedModel, TextEncoder | PairScorer]:
    """Loads a model. Raises `LoadError`."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    chosen = choose_device(device)
    auto_class: Any = AutoModelForSequenceClassification if kind == "rerank" else AutoModel
    if kind == "embedding" and modules.config.get("is_encoder_decoder"):
        auto_class = AutoModelForTextEncoding
    try:
        model, report = auto_class.from_pretrained(
            modules.transformer,
            dtype=torch.float32 if chosen == "cpu" else "auto",
            use_safetensors=True,
            **LOAD_OPTIONS,
        )
        names = list_missing(report, modules.transformer)
        model = model.eval().to(chosen)
    except LoadError:
        raise
    except Exception as error:  # what a model's own code raises is unknown
        if is_out_of_memory(error):
            raise LoadError(f"{modules.transformer} does not fit into the memory of {chosen}") from error
        log.debug("loading %s failed", modules.transformer, exc_info=True)
        raise LoadError(f"{modules.transformer} cannot be loaded ({one_line(error)}); check its files") from error
    missing = [name for name in names if kind == "rerank" or "pooler." not in name]
    if missing:
        raise LoadError(f"{modules.transformer}: {describe_missing(missing)}; fetch it again")
    check_finite_weights(modules.transformer, model.named_parameters())
    if kind == "embedding":
        return model, TextEncoder(model, modules)
    if model.config.num_labels != 1:
        raise LoadError(f"{modules.transformer}: has {model.config.num_labels} labels; a reranking model has one")
    return model, PairScorer(model, modules)


def _load_dense(folder: Path, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns a linear layer with its activation. Raises `LoadError`."""
    config = read_json_object(folder / "config.json")
    name = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise LoadError(f"{folder / 'config.json'}: the activation {name} is not supported; choose another model")
    if not (folder / "model.safetensors").is_file():
        raise LoadError(f"{folder}: no model.safetensors; convert the weights to safetensors")
    weights = {key: tensor.float().to(device) for key, tensor in load_file(folder / "model.safetensors").items()}
    check_finite_weights(folder, weights.items())
    weight, bias, activation = weights["linear.weight"], weights.get("linear.bias"), ACTIVATIONS[name]
    return lambda vectors: activation(nn.functional.linear(vectors, weight, bias))


def _to_bytes(numbers: Tensor) -> bytes:
    return bytes(numbers.numpy().astype("<f4").tobytes())
