"""A tokenizer with a pattern that backtracks without end: the request fails with an error that names the tokenizer."""

import json
import shutil
from pathlib import Path

import httpx
import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony.detection import detect
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)+b"])
def test_catastrophic_pattern_is_an_error_of_the_tokenizer(
    pattern: str, tmp_path: Path, start_server: StartServer
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, tokenizer["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    model_format = detect.load_format(folder, None).format
    info = EngineInfo(max_model_len=100_000, vocab_size=262_144, device="none", eos_ids=())
    replies = parse_script({"reply": [{"name": "hello", "output": ["Hello."]}]})
    engine = ScriptedEngine(replies, encode=model_format.encode, decode=model_format.decode, info=info)
    registry = ModelRegistry([ServedModel(names=("slow",), engine=engine, format=model_format, created=1)])
    server = start_server(registry)
    reply = httpx.post(
        f"{server.url}/responses", json={"model": "slow", "input": "a" * 5_000 + "!"}, timeout=HANG_TIMEOUT_S
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_prompt", "input")
    assert "tokenizer" in error["message"]
    assert (
        httpx.post(f"{server.url}/responses", json={"model": "slow", "input": "Hi"}, timeout=HANG_TIMEOUT_S).status_code
        == 200
    )
