"""Adapters come and go while jobs run: caches are never shared, and a running job keeps its adapter."""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from antiphon.engine.adapters import registry
from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.registry import AdapterRegistry
from antiphon.engine.errors import LoadError
from antiphon.engine.options import LoraModule
from antiphon.engine.protocol import EngineError, Job
from tests.engine.adapters.adapter_folders import (
    base_model,
    build_adapted_core,
    generate_merged,
    make_adapter,
    merge_adapter,
)
from tests.engine.tiny_models import generate_tokens, join_tokens, make_job, make_prompts, run_jobs

PROMPT = make_prompts(60)[0]
NUM_TOKENS = 12


def greedy_job(name: str, adapter: str = "", prompt: list[int] = PROMPT, count: int = NUM_TOKENS) -> Job:
    return make_job(prompt, name, adapter=adapter, max_tokens=count, ignore_eos=True)


def expected_tokens(folder: Path | None, prompt: list[int] = PROMPT, count: int = NUM_TOKENS) -> list[int]:
    model = base_model("qwen3") if folder is None else merge_adapter("qwen3", folder)
    model.generation_config.eos_token_id = None
    return generate_merged(model, prompt, count)


def test_prefixes_are_shared_within_an_adapter_only(tmp_path: Path) -> None:
    folders = {name: make_adapter(tmp_path / name, "qwen3", seed) for seed, name in enumerate("ab")}
    core = build_adapted_core("qwen3", folders)
    cached = {}
    for name in ("", "a", "b", "a", "", "b"):
        chunks = run_jobs(core, greedy_job("j", name))["j"]
        cached.setdefault(name, []).append(chunks[0].cached_tokens)
        assert join_tokens(chunks) == expected_tokens(folders.get(name)), name
    assert cached == {name: [0, len(PROMPT) - 1] for name in ("", "a", "b")}


def test_running_jobs_of_different_adapters_share_no_prefix(tmp_path: Path) -> None:
    folders = {name: make_adapter(tmp_path / name, "qwen3", seed) for seed, name in enumerate("ab")}
    core = build_adapted_core("qwen3", folders)
    output = run_jobs(core, *(greedy_job(f"j{name}", name) for name in ("", "a", "b")))
    assert [output[f"j{name}"][0].cached_tokens for name in ("", "a", "b")] == [0, 0, 0]
    for name in ("", "a", "b"):
        assert join_tokens(output[f"j{name}"]) == expected_tokens(folders.get(name))


def test_a_name_that_is_loaded_again_reads_no_old_cache(tmp_path: Path) -> None:
    old, new = (make_adapter(tmp_path / str(seed), "qwen3", seed) for seed in (1, 2))
    core = build_adapted_core("qwen3", {"a": old})
    assert core.adapters is not None
    assert generate_tokens(core, greedy_job("j", "a")) == expected_tokens(old)
    assert core.stats().idle_cache_tokens
    core.adapters.load("a", str(new))
    assert not core.stats().idle_cache_tokens
    chunks = run_jobs(core, greedy_job("j", "a"))["j"]
    assert chunks[0].cached_tokens == 0
    assert join_tokens(chunks) == expected_tokens(new)


def test_a_job_keeps_an_adapter_that_is_unloaded(tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, "qwen3", 1)
    core = build_adapted_core("qwen3", {"a": folder})
    assert core.adapters is not None
    core.add(greedy_job("j", "a"))
    chunks = [*core.step(), *core.step(), *core.step()]
    core.adapters.unload("a")
    with pytest.raises(EngineError) as raised:
        core.add(greedy_job("late", "a"))
    assert raised.value.code == "adapter_not_found"
    while core.has_work:
        chunks += core.step()
    assert join_tokens([chunk for _, chunk in chunks]) == expected_tokens(folder)
    assert not core.stats().idle_cache_tokens
    with pytest.raises(EngineError, match="'a' is not loaded"):
        core.adapters.unload("a")


def test_an_adapter_that_is_unloaded_is_freed(tmp_path: Path) -> None:
    core = build_adapted_core("qwen3", {"a": make_adapter(tmp_path, "qwen3", 1)})
    assert core.adapters is not None
    generate_tokens(core, greedy_job("j", "a"))
    adapter = core.adapters.find("a")
    assert adapter is not None
    freed = weakref.ref(adapter)
    del adapter
    core.adapters.unload("a")
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize(
    ("trained_on", "base", "warns"),
    [
        ("Qwen/Qwen3-4B", "/models/Qwen3-4B", False),
        ("qwen/qwen3-4b/", "/models/Qwen3-4B", False),
        ("Qwen/Qwen3-4B", "/hub/models--Qwen--Qwen3-4B/snapshots/0f", False),
        ("Qwen/Qwen3-8B", "/models/Qwen3-4B", True),
        ("", "/models/Qwen3-4B", False),
        ("Qwen/Qwen3-8B", None, False),
    ],
)
def test_base_model_of_another_name_is_told(
    trained_on: str, base: str | None, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_adapter(tmp_path, "qwen3", 1, base_model_name_or_path=trained_on)
    layers = AdaptableLayers(base_model("qwen3"))
    AdapterRegistry(layers, torch.float32, None if base is None else Path(base)).load("a", str(folder))
    assert ("was trained on" in caplog.text) is warns


@pytest.mark.parametrize(("free", "is_loaded"), [(None, True), (2.0, True), (1.9, False)])
def test_an_adapter_must_fit_twice_into_the_free_memory(
    free: float | None, is_loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_adapter(tmp_path, "qwen3", 1)
    size = (folder / "adapter_model.safetensors").stat().st_size
    monkeypatch.setattr(registry, "free_memory", lambda _: None if free is None else int(free * size))
    adapters = AdapterRegistry(AdaptableLayers(base_model("qwen3")), torch.float32)
    if is_loaded:
        assert adapters.load("a", str(folder)).num_bytes
        return
    with pytest.raises(LoadError, match="unload another adapter, or free some memory"):
        adapters.load("a", str(folder))


def test_an_adapter_that_is_not_required_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = make_adapter(tmp_path, "qwen3", 1)
    modules = (LoraModule("bad", str(tmp_path / "nothing"), required=False), LoraModule("good", str(good)))
    adapters = AdapterRegistry(AdaptableLayers(base_model("qwen3")), torch.float32)
    adapters.read_all(modules)
    adapters.load_all(modules)
    assert "adapter bad is not served" in caplog.text
    assert adapters.find("good") is not None and adapters.find("") is None
    required = (LoraModule("bad", str(tmp_path / "nothing")),)
    for load in (adapters.read_all, adapters.load_all):
        with pytest.raises(LoadError, match="there is no such folder"):
            load(required)


def test_an_adapter_that_is_not_loaded_is_refused() -> None:
    core = build_adapted_core("qwen3", {})
    assert core.adapters is None
    with pytest.raises(EngineError) as raised:
        core.add(greedy_job("j", "a"))
    assert raised.value.code == "adapter_not_found"
