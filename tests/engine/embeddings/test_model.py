"""Vectors and scores of tiny models, against transformers' own forward pass of each text alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.engine.embeddings.core import EncoderCore
from antiphon.engine.embeddings.worker import build_embedding_core, build_rerank_core
from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job
from tests.engine.embeddings import tiny_repositories as tiny

OPTIONS = EngineOptions(threads=1, device="cpu")
MIN_COSINE = 0.9999


def run_core(core: EncoderCore, inputs: list[EncoderInput], **options: Any) -> list[torch.Tensor]:
    """Returns the vectors of a job's inputs, in their order."""
    core.add(Job(id="job", tokens=(), encoder_inputs=tuple(inputs), vector_options=VectorOptions(**options)))
    results: dict[int, bytes] = {}
    while core.has_work:
        for _, chunk in core.step():
            assert chunk.fault is None
            results.update(chunk.vectors)
    return [torch.frombuffer(bytearray(results[index]), dtype=torch.float32) for index in range(len(inputs))]


def read_texts(texts: list[str], *, decoder: bool = False) -> list[EncoderInput]:
    return [EncoderInput(tuple(tiny.token_ids(text, decoder=decoder))) for text in texts]


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        assert float(torch.cosine_similarity(one, other, dim=0)) >= MIN_COSINE
        assert torch.allclose(one, other, atol=1e-4)


def pool(hidden: torch.Tensor, mode: str) -> torch.Tensor:
    """Pools the vectors of one text."""
    if mode in ("cls", "lasttoken"):
        return hidden[0] if mode == "cls" else hidden[-1]
    if mode == "max":
        return hidden.max(0).values
    if mode == "weightedmean":
        weights = torch.arange(1.0, len(hidden) + 1)
        return (weights @ hidden) / weights.sum()
    return hidden.mean(0) if mode == "mean" else hidden.sum(0) / len(hidden) ** 0.5


@pytest.mark.parametrize("mode", tiny.POOLING)
def test_every_pooling_mode_equals_that_of_a_text_alone(tmp_path: Path, mode: str) -> None:
    folder = tiny.save_bert(tmp_path)
    tiny.write_modules(folder, (mode,))
    expected = [pool(tiny.hidden_states(folder, tiny.token_ids(text)), mode) for text in tiny.TEXTS]
    core = build_embedding_core(folder, OPTIONS)
    assert_close(run_core(core, read_texts(tiny.TEXTS)), expected)
    assert (core.info.vector_size, core.info.max_model_len) == (32, 64)


def test_pooling_modes_are_joined_and_normalized(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path)
    tiny.write_modules(folder, ("mean", "cls"), "Normalize", max_seq_length=40)
    hidden = [tiny.hidden_states(folder, tiny.token_ids(text)) for text in tiny.TEXTS]
    joined = [torch.cat([states[0], states.mean(0)]) for states in hidden]
    core = build_embedding_core(folder, OPTIONS)
    assert (core.info.vector_size, core.info.max_model_len) == (64, 40)
    assert_close(run_core(core, read_texts(tiny.TEXTS)), [vector / vector.norm() for vector in joined])
    assert_close(run_core(core, read_texts(tiny.TEXTS), normalize=False), joined)
    assert "cls and mean pooling, normalized" in core.info.description


def test_dense_layer_follows_the_pooling(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path)
    tiny.write_modules(folder, ("mean",), "Dense")
    tiny.write_dense(folder / "2_Dense", 5, "Tanh")
    from safetensors.torch import load_file

    weights = load_file(folder / "2_Dense/model.safetensors")
    pooled = [tiny.hidden_states(folder, tiny.token_ids(text)).mean(0) for text in tiny.TEXTS]
    expected = [torch.tanh(weights["linear.weight"] @ vector + weights["linear.bias"]) for vector in pooled]
    core = build_embedding_core(folder, OPTIONS)
    assert_close(run_core(core, read_texts(tiny.TEXTS)), expected)
    assert core.info.vector_size == 5


def test_decoder_pools_the_last_token(tmp_path: Path) -> None:
    folder = tiny.save_qwen3(tmp_path)
    tiny.write_modules(folder, ("lasttoken",), "Normalize")
    vectors = [tiny.hidden_states(folder, tiny.token_ids(text, decoder=True))[-1] for text in tiny.TEXTS]
    core = build_embedding_core(folder, OPTIONS)
    expected = [vector / vector.norm() for vector in vectors]
    assert_close(run_core(core, read_texts(tiny.TEXTS, decoder=True)), expected)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_without_modules_an_encoder_is_averaged_and_a_decoder_gives_its_last_token(
    tmp_path: Path, is_decoder: bool
) -> None:
    folder = tiny.save_qwen3(tmp_path) if is_decoder else tiny.save_bert(tmp_path)
    hidden = [tiny.hidden_states(folder, tiny.token_ids(text, decoder=is_decoder)) for text in tiny.TEXTS]
    vectors = [states[-1] if is_decoder else states.mean(0) for states in hidden]
    core = build_embedding_core(folder, OPTIONS)
    expected = [vector / vector.norm() for vector in vectors]
    assert_close(run_core(core, read_texts(tiny.TEXTS, decoder=is_decoder)), expected)
    default = "lasttoken pooling, normalized, the default for a decoder"
    expected_note = default if is_decoder else "mean pooling, normalized, the default for an encoder"
    assert f"no modules.json: {expected_note}" in core.info.description


@pytest.mark.parametrize("normalize", [None, True, False])
def test_dimensions_cut_and_normalize_again(tmp_path: Path, normalize: bool | None) -> None:
    folder = tiny.save_bert(tmp_path)
    tiny.write_modules(folder, ("mean",))
    cut = [tiny.hidden_states(folder, tiny.token_ids(text)).mean(0)[:7] for text in tiny.TEXTS]
    expected = cut if normalize is False else [vector / vector.norm() for vector in cut]
    core = build_embedding_core(folder, OPTIONS)
    assert_close(run_core(core, read_texts(tiny.TEXTS), dimensions=7, normalize=normalize), expected)


@pytest.mark.parametrize("identity", [False, True])
def test_pairs_are_scored_with_their_types(tmp_path: Path, identity: bool) -> None:
    name = "torch.nn.modules.linear.Identity" if identity else "torch.nn.modules.activation.Sigmoid"
    folder = tiny.save_cross_encoder(tmp_path, sentence_transformers={"activation_fn": name})
    pairs = [("a cat sat", text) for text in tiny.TEXTS]
    logits = torch.tensor([tiny.pair_score(folder, *pair) for pair in pairs])
    inputs = [
        EncoderInput((*tiny.token_ids(first), *tiny.token_ids(second)[1:]), len(tiny.token_ids(first)))
        for first, second in pairs
    ]
    scores = torch.cat(run_core(build_rerank_core(folder, OPTIONS), inputs))
    assert torch.allclose(scores, logits if identity else torch.sigmoid(logits), atol=1e-5)
    assert len({round(float(score), 4) for score in scores}) == len(pairs)


def test_model_with_several_labels_does_not_rerank(tmp_path: Path) -> None:
    folder = tiny.save_cross_encoder(tmp_path, num_labels=3)
    with pytest.raises(LoadError, match="has 3 labels; a reranking model has one"):
        build_rerank_core(folder, OPTIONS)


def test_embedding_model_without_a_head_does_not_rerank(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="weights are missing"):
        build_rerank_core(tiny.save_bert(tmp_path), OPTIONS)


def spoil_weight(file: Path, name: str) -> None:
    """Makes the last number of a tensor in a file NaN."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    weights[name].view(-1)[-1] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["embedding", "dense", "rerank"])
def test_weight_that_is_not_finite_is_named(tmp_path: Path, kind: str) -> None:
    if kind == "rerank":
        folder = tiny.save_cross_encoder(tmp_path)
    else:
        folder = tiny.save_bert(tmp_path)
        tiny.write_modules(folder, ("mean",), "Dense")
        tiny.write_dense(folder / "2_Dense", 5, "Tanh")
    name = "linear.bias" if kind == "dense" else "embeddings.word_embeddings.weight"  # of a token that no text has
    prefix = "bert." if kind == "rerank" else ""
    spoil_weight(folder / ("2_Dense/model.safetensors" if kind == "dense" else "model.safetensors"), prefix + name)
    with pytest.raises(LoadError, match=f"the weight {prefix}{name} holds NaN or infinity"):
        (build_rerank_core if kind == "rerank" else build_embedding_core)(folder, OPTIONS)
