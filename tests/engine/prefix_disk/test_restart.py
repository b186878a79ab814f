"""A restart of a real model: what it computes from pages on disk has the bits of what it computes without."""

import copy
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.builder import build_core
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions, LoraModule, SecretBytes
from antiphon.engine.prefix_disk import opening
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.adapters.adapter_folders import base_model, make_adapter
from tests.engine.chunk_stream import stream_chunks
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import VOCAB_SIZE, copy_tiny_model, join_tokens, make_job, run_jobs

FIRST = [3 + (7 * n * n + n) % (VOCAB_SIZE - 3) for n in range(600)]
SECOND = [*FIRST[:512], *range(5, 17)]
"""It leaves the first prompt at the end of a page, so that the memory and the disk know equally much of it."""


def save_model(folder: Path, family: str = "qwen3", model: Any = None) -> Path:
    model = copy_tiny_model(family) if model is None else model
    model.config.max_position_embeddings = 2048
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    monkeypatch.setattr(opening, "find_page_folder", lambda: folder)
    return folder


def start(folder: Path, **options: Any) -> Core:
    """Returns a core without drafts, which depend on how long steps take."""
    defaults = {"prefix_cache_disk": 0.1, "force_quantization": True, "threads": 1, "kv_cache_gib": 0.05}
    settings = defaults | {"max_draft_seqs": 0} | options
    return build_core(folder, EngineOptions(**settings))


def run_turn(core: Core, prompt: list[int], **options: Any) -> list[Chunk]:
    return run_jobs(core, make_job(prompt, max_tokens=8, ignore_eos=True, top_logprobs=3, **options))["j"]


def read_output(chunks: list[Chunk]) -> list[Any]:
    return [pair for chunk in chunks for pair in zip(chunk.tokens, chunk.logprobs, strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deterministic": True},
        {"compile_kernels": False},
        {"quantization": "int8"},
        {"quantization": "int8", "kv_cache_dtype": "float32"},
        {"quantization": "int8", "compile_kernels": False},
        {"quantization": "int4"},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["tiny", "embedded"])
def test_next_turn_after_a_restart_has_the_same_bits(model: str, options: dict[str, Any], model_folder: Path) -> None:
    if options.get("compile_kernels", True):
        require_kernels()
    folder = MODEL_DIR if model == "embedded" else model_folder
    core = start(folder, **options)
    run_turn(core, FIRST)
    expected = run_turn(core, SECOND)
    core.close(30.0)
    core = start(folder, **options)
    chunks = run_turn(core, SECOND)
    assert chunks[0].cached_tokens == expected[0].cached_tokens == 512
    assert core.stats().disk_hit_tokens == 512
    assert read_output(chunks) == read_output(expected)
    if options.get("deterministic") or options.get("quantization"):
        fresh = run_turn(start(folder, prefix_cache_disk=None, **options), SECOND)
        assert fresh[0].cached_tokens == 0 and read_output(fresh) == read_output(chunks)


def test_other_form_or_model_starts_anew(model_folder: Path, tmp_path: Path) -> None:
    require_kernels()
    other = copy_tiny_model("qwen3")
    other.get_input_embeddings().weight.data[5, 0] += 1.0
    for folder, options in (
        (model_folder, {"quantization": "int8"}),
        (model_folder, {"quantization": "int4"}),
        (model_folder, {"quantization": "int8", "kv_cache_dtype": "float32"}),
        (model_folder, {"quantization": "int8", "prefix_cache_key": SecretBytes(b"k")}),
        (model_folder, {"quantization": "int8", "deterministic": True}),
        (model_folder, {}),
        (save_model(tmp_path / "other", model=other), {}),
    ):
        core = start(folder, **options)
        assert run_turn(core, FIRST)[0].cached_tokens == 0, options
        core.close(30.0)


def test_adapters_share_nothing_and_are_found_again(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", model=copy.deepcopy(base_model("qwen3")))
    one, two = (make_adapter(tmp_path / name, "qwen3", seed) for seed, name in enumerate(("one", "two")))

    def start_adapted(**modules: Path) -> Core:
        return start(folder, lora_modules=tuple(LoraModule(name, str(path)) for name, path in modules.items()))

    core = start_adapted(a=one)
    expected = run_turn(core, FIRST, adapter="a")
    core.close(30.0)
    core = start_adapted(x=two, y=one)
    assert run_turn(core, FIRST, adapter="x")[0].cached_tokens == 0
    assert run_turn(core, FIRST)[0].cached_tokens == 0
    chunks = run_turn(core, FIRST, adapter="y")
    assert chunks[0].cached_tokens == 576, "neither the name nor the number of the adapter counts"
    assert join_tokens(chunks) == join_tokens(expected)


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("lfm2", {}, "layers of the model have a state"),
        ("bloom", {}, "computes whole prompts only"),
        ("qwen3", {"paged_cache": True}, "only caches in the memory of the CPU are"),
        ("qwen3", {"enable_prefix_caching": False}, "reuses no prefix"),
    ],
)
def test_models_without_pages_say_why(
    family: str,
    options: dict[str, Any],
    reason: str,
    tmp_path: Path,
    page_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = start(save_model(tmp_path / "model", family), **options)
    assert "prefixes are not kept on disk" in caplog.text and reason in caplog.text
    run_turn(core, FIRST)
    core.close(30.0)
    assert not list(page_folder.iterdir())


def test_folder_that_cannot_be_used_is_told_in_one_line(
    model_folder: Path, page_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    page_folder.rmdir()
    core = start(model_folder)
    monkeypatch.setattr(opening, "find_page_folder", lambda: None)
    start(model_folder)
    lines = [message for message in caplog.messages if "not kept on disk" in message]
    assert len(lines) == 2 and "No such file" in lines[0] and "no folder that only this user can write to" in lines[1]
    assert all("\n" not in line for line in lines)
    assert len(run_turn(core, FIRST)) > 1


async def test_worker_process_keeps_prefixes_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is closed right after the job: what is not written yet is written before the exit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = SecretBytes(b"k" * 32)
    options = EngineOptions(prefix_cache_disk=0.1, prefix_cache_key=key, compile_kernels=False, kv_cache_gib=0.05)

    async def run(prompt: list[int]) -> list[Chunk]:
        engine = ProcessEngine(MODEL_DIR, options)
        await engine.start()
        try:
            job: Job = make_job(prompt, max_tokens=4)
            return [chunk async for chunk in stream_chunks(engine, job)]
        finally:
            await engine.close()

    assert (await run(FIRST))[0].cached_tokens == 0
    assert len(list((tmp_path / "antiphon" / "prefixes").glob("*.page"))) == 9
    assert not (tmp_path / "antiphon" / "prefixes" / "page.key").exists(), "the key is the server's"
    assert (await run(SECOND))[0].cached_tokens == 512


def test_key_is_in_no_text_of_the_options() -> None:
    options = EngineOptions(prefix_cache_key=SecretBytes(b"secret key"))
    assert "secret key" not in f"{options!r} {options} {options.prefix_cache_key}"
