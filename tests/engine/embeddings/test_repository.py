"""What is read from the repository of an embedding model, and what is refused in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects

from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embeddings.repository import read_repository
from antiphon.engine.errors import LoadError
from tests.engine.embeddings.tiny_repositories import save_tokenizer, write_json, write_modules

CONFIG = {"model_type": "bert", "max_position_embeddings": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository without real weights."""
    write_json(tmp_path / "config.json", CONFIG)
    (tmp_path / "model.safetensors").write_bytes(b"")
    save_tokenizer(tmp_path)
    write_modules(tmp_path, ("mean",), "Normalize", max_seq_length=40)
    return tmp_path


def test_modules_are_read(folder: Path) -> None:
    modules = read_repository(folder, "embedding")
    assert (modules.pooling, modules.normalize, modules.max_tokens, modules.dense) == (("mean",), True, 40, ())
    assert (modules.transformer, modules.lower_case, modules.prompt) == (folder, False, "")


def test_transformer_may_be_in_a_folder_of_its_own(folder: Path) -> None:
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"):
        shutil.move(folder / name, folder / "0_Transformer" / name)
    rows = [{"path": "0_Transformer", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]
    write_json(folder / "modules.json", rows)
    modules = read_repository(folder, "embedding")
    assert (modules.transformer, modules.max_tokens) == (folder / "0_Transformer", 40)


@pytest.mark.parametrize(
    ("config", "tokenizer", "max_seq_length", "expected"),
    [
        ({}, {}, 40, 40),
        ({}, {}, 400, 64),
        ({}, {"model_max_length": 30}, None, 30),
        ({}, {"model_max_length": int(1e30)}, None, 64),
        ({"model_type": "roberta", "pad_token_id": 1}, {}, None, 62),
        ({"max_position_embeddings": None}, {}, None, 8192),
    ],
)
def test_longest_input(
    folder: Path, config: dict[str, Any], tokenizer: dict[str, Any], max_seq_length: int | None, expected: int
) -> None:
    write_json(folder / "config.json", CONFIG | config)
    write_json(folder / "tokenizer_config.json", tokenizer)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    assert read_repository(folder, "embedding").max_tokens == expected


def test_default_prompt_is_read(folder: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    assert read_repository(folder, "embedding").prompt == "passage: "
    write_json(folder / "config_sentence_transformers.json", prompts | {"default_prompt_name": None})
    assert read_repository(folder, "embedding").prompt == ""


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode": "weightedmean"}, ("weightedmean",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
    ],
)
def test_pooling_modes_are_joined_in_their_order(folder: Path, config: dict[str, Any], modes: tuple[str, ...]) -> None:
    write_json(folder / "1_Pooling/config.json", config)
    assert read_repository(folder, "embedding").pooling == modes


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("modules.json", [{"path": "", "type": "a.Transformer"}, {"path": "1", "type": "a.LSTM"}], "the module LSTM is not supported"),
        ("modules.json", [{"path": "", "type": "a.Transformer"}], "no pooling module"),
        ("modules.json", [{"path": "../x", "type": "a.Transformer"}], "../x is outside of the repository"),
        ("modules.json", {"a": 1}, "not a list of modules"),
        ("1_Pooling/config.json", {"pooling_mode": "maxmin"}, "the pooling mode maxmin is not supported"),
        ("1_Pooling/config.json", {}, "the pooling mode none is not supported"),
        ("1_Pooling/config.json", [], "not a JSON object"),
        ("config.json", {}, "no model_type"),
    ],
)  # fmt: skip
def test_unusable_repository_is_refused(folder: Path, file: str, content: Any, reason: str) -> None:
    write_json(folder / file, content)
    with pytest.raises(LoadError) as caught:
        read_repository(folder, "embedding")
    assert reason in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "no model.safetensors"),
        ("1_Pooling/config.json", "not readable as JSON"),
    ],
)
def test_missing_file_is_reported(folder: Path, file: str, reason: str) -> None:
    (folder / file).unlink()
    with pytest.raises(LoadError, match=reason):
        read_repository(folder, "embedding")


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such folder"):
        read_repository(tmp_path / "nowhere", "embedding")


def test_download_has_the_modules_and_no_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "0_Transformer/model.safetensors",
    ]
    others = [
        "onnx/model.safetensors",
        "onnx/config.json",
        "openvino/config.json",
        "pytorch_model.bin",
        "2_Dense/pytorch_model.bin",
    ]
    fetched: list[str] = []

    def download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str], **__: object) -> str:
        fetched.extend(
            filter_repo_objects(needed + others, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        )
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert fetch_checkpoint("owner/name", with_modules=True) == tmp_path
    assert fetched == needed


def test_prompt_that_pooling_leaves_out_is_refused(folder: Path) -> None:
    write_json(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    assert read_repository(folder, "embedding").pooling == ("mean",)
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    with pytest.raises(LoadError, match="pooling without the prompt"):
        read_repository(folder, "embedding")
