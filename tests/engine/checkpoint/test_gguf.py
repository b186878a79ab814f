"""GGUF files: read by transformers, served in int8, with the tokenizer and the template of the file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.checkpoint.gguf import folder, tokenizer_conversion
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.errors import LoadError
from antiphon.engine.load.loader import load_model
from antiphon.engine.options import EngineOptions
from antiphon.harmony.detection.detect import load_format, read_chat_templates
from tests.engine.checkpoint.gguf_files import TEMPLATE, write_gguf

pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT = torch.tensor([[3, 9, 27, 81, 51, 57, 75, 33]])


@pytest.fixture(autouse=True)
def _cache_in_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")


@pytest.mark.parametrize("kind", ["lfm2", "qwen3"])
def test_file_is_served_with_its_own_tokenizer(kind: str, tmp_path: Path) -> None:
    expected: Any = write_gguf(tmp_path / "tiny.gguf", kind)
    model_folder = fetch_checkpoint(str(tmp_path / "tiny.gguf"))
    assert fetch_checkpoint(str(tmp_path)) == model_folder  # the only file of the folder, converted already
    checkpoint = inspect_checkpoint(model_folder)
    assert checkpoint.num_weights == sum(weight.numel() for weight in expected.parameters())
    assert Tokenizer.from_file(str(model_folder / "tokenizer.json")).encode("ab").ids == [259]
    assert load_format(model_folder).format and read_chat_templates(model_folder).default == TEMPLATE
    model: Any = load_model(model_folder, device="cpu")[0]
    with torch.inference_mode():
        assert torch.allclose(model(PROMPT).logits, expected(PROMPT).logits, rtol=1e-4, atol=1e-4)
    core = build_core(model_folder, EngineOptions(threads=1, force_quantization=True))
    assert "stored in gguf" in core.info.description and "matrices in int8" in core.info.description


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ImportError("install gguf"), r"install gguf.*pip install 'antiphon\[gguf\]'"),
        (ValueError("architecture x\nis not supported"), "architecture x.*give the model's safetensors weights"),
    ],
)
def test_file_that_cannot_be_converted_is_named_in_one_line(
    failure: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise failure

    monkeypatch.setattr(tokenizer_conversion, "write_model_folder", fail)
    monkeypatch.setattr("sys.argv", ["conversion", str(tmp_path / "a.gguf"), str(tmp_path)])
    with pytest.raises(SystemExit, match=message) as caught:
        tokenizer_conversion.main()
    assert "\n" not in str(caught.value.code)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(LoadError, match="not a GGUF file of version 2 or 3, or is cut short"):
        fetch_checkpoint(str(tmp_path / "a.gguf"))
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(LoadError, match="holds 2 GGUF files; give the path of one"):
        fetch_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / "b.gguf").unlink()
    with pytest.raises(LoadError, match="not a GGUF file of version 2 or 3, or is cut short"):
        inspect_checkpoint(tmp_path)
    with pytest.raises(LoadError, match="llama-gguf-split --merge"):
        fetch_checkpoint(str((tmp_path / "a.gguf").rename(tmp_path / "a-00001-of-00002.gguf")))
