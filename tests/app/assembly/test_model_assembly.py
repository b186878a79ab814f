"""Models that are created from the options: their formats, and the memory that they share."""

import asyncio
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.assembly import models as assembly
from antiphon.app.assembly.models import create_models
from antiphon.app.models.memory import (
    HEADROOM,
    MIN_CACHE_BYTES,
    PROCESS_BYTES,
    SHARED_CACHE_BYTES,
    MemoryEstimate,
    divide_cache,
    estimate_weights,
)
from antiphon.app.models.memory_pool import GIB
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.models.static_info import read_static_info
from antiphon.app.observability.startup import create_console, show_banner
from antiphon.app.options.serve_options import ModelOption, ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions, LoraModule
from antiphon.engine.process.spawn import WorkerProcess
from tests.app.models.fake_engines import GatedEngine
from tests.progress import HANG_TIMEOUT_S

TWO = (f"one={MODEL_DIR}", f"two={MODEL_DIR}")


@pytest.fixture
def engine_options(monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """Records the options of each engine that is created."""
    recorded: list[EngineOptions] = []
    original = assembly.ProcessEngine

    def record(folder: Path, options: EngineOptions, **more: Any) -> Any:
        recorded.append(options)
        return original(folder, options, **more)

    monkeypatch.setattr(assembly, "ProcessEngine", record)
    return recorded


async def create(*models: str, **options: Any) -> tuple[ModelRegistry, dict[str, str]]:
    engine = EngineOptions(**options.pop("engine", {}))
    serve_options = ServeOptions(models=models, engine_options=engine, **options)
    return await create_models(serve_options, Settings(), lambda *_: None, WorkerProcess)


async def test_each_model_has_a_format_and_adapters_of_its_own(
    tmp_path: Path, engine_options: list[EngineOptions]
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    registry, notes = await create(
        *TWO,
        served_model_names=("a", "b"),
        model_options=(ModelOption("two", "dialect", "llama3"), ModelOption("b", "quantization", "int4")),
        engine={"lora_modules": (LoraModule("b:sql", str(tmp_path)),)},
    )
    assert [(model.names, model.format.name) for model in registry.served] == [
        (("one", "a"), "hermes"),
        (("two", "b"), "llama3"),
    ]
    assert registry.find_model("sql").parent == "two"
    assert "llama3" in notes["two"] and "hermes" in notes["one"]
    assert [options.quantization for options in engine_options] == [None, "int4"]
    assert [[module.name for module in options.lora_modules] for options in engine_options] == [[], ["sql"]]
    assert [options.kv_cache_share for options in engine_options] == [2, 2], "they share the free memory"


async def test_single_model_has_all_of_the_memory(engine_options: list[EngineOptions]) -> None:
    await create(str(MODEL_DIR))
    await create(str(MODEL_DIR), memory_gib=4.0)
    await create(*TWO, memory_gib=4.0, engine={"kv_cache_gib": 0.5})
    assert engine_options[0] == EngineOptions()
    assert 3 < (engine_options[1].kv_cache_gib or 0) < 4 - PROCESS_BYTES / GIB
    assert [options.kv_cache_gib for options in engine_options[2:]] == [0.5, 0.5]


async def test_models_with_the_same_name_are_refused() -> None:
    with pytest.raises(ServeError, match=r"duplicate model name 'model': .* such as NAME=PATH_OR_HUB_ID"):
        await create(str(MODEL_DIR), str(MODEL_DIR))


async def test_model_that_can_never_fit_is_refused_at_the_start(tmp_path: Path) -> None:
    big = {"a.weight": {"dtype": "BF16", "shape": [1 << 20, 1 << 11], "data_offsets": [0, 1 << 32]}}
    header = json.dumps(big).encode()
    for file in MODEL_DIR.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / "model.safetensors").open("wb") as weights:  # a sparse file
        weights.write(len(header).to_bytes(8, "little") + header)
        weights.truncate(8 + len(header) + (1 << 32))
    with pytest.raises(ServeError, match=r"--memory-gib 3: big needs at least 4\.25 GiB; raise it, choose a smaller"):
        await create(str(MODEL_DIR), f"big={tmp_path}", memory_gib=3.0)
    registry, _ = await create(f"big={tmp_path}", memory_gib=3.0, engine={"quantization": "int8"})
    assert registry.find_model("big")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"idle_unload_s": 60.0, "engine": "scripted"}, "--idle-unload requires --engine torch"),
        ({"load_on_demand": True, "engine": "vllm"}, "--load-on-demand requires --engine torch"),
        ({"memory_gib": 4.0, "engine": "remote"}, "--memory-gib requires --engine torch"),
        ({"idle_unload_s": 60.0, "record": Path("r.toml")}, "--record requires a model that stays loaded"),
    ],
)
async def test_only_models_that_are_loaded_here_can_be_unloaded(options: Any, reason: str) -> None:
    with pytest.raises(ServeError, match=reason):
        await create_models(ServeOptions(**options), Settings(), lambda *_: None, WorkerProcess)


async def test_prefixes_on_disk_get_a_key_of_the_store_s(tmp_path: Path, engine_options: list[EngineOptions]) -> None:
    """A server without a key file has none to give: its key would be lost at the end."""
    settings = Settings(store_file=tmp_path / "responses.db")
    for gib, each in ((1.5, settings), (1.5, settings), (None, settings), (1.5, Settings())):
        options = ServeOptions(models=(str(MODEL_DIR),), engine_options=EngineOptions(prefix_cache_disk=gib))
        await create_models(options, each, lambda *_: None, WorkerProcess)
    keys = [options.prefix_cache_key.value for options in engine_options]
    assert len(keys[0]) == 32 and keys == [keys[0], keys[0], b"", b""]
    assert (tmp_path / "responses.db.key").read_bytes() != keys[0]


@pytest.mark.parametrize("engine", ["scripted", "vllm", "remote"])
async def test_prefixes_on_disk_belong_to_the_torch_engine(engine: Any) -> None:
    options = ServeOptions(engine=engine, engine_options=EngineOptions(prefix_cache_disk=1.0))
    with pytest.raises(ServeError, match=r"^--prefix-cache-disk requires --engine torch: other engines keep"):
        await create_models(options, Settings(), lambda *_: None, WorkerProcess)


async def test_files_tell_what_the_engine_will_report() -> None:
    registry, _ = await create(str(MODEL_DIR), load_on_demand=True)
    info = registry.served[0].engine.info
    config = json.loads((MODEL_DIR / "config.json").read_text())
    text = config["text_config"]
    assert (info.max_model_len, info.vocab_size) == (text["max_position_embeddings"], text["vocab_size"])
    assert info.eos_ids and info.architecture == config["model_type"]
    registry, _ = await create(str(MODEL_DIR), load_on_demand=True, engine={"max_model_len": 99})
    assert registry.served[0].engine.info.max_model_len == 99


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 1000}, 1000),
        ({"text_config": {"n_ctx": 500, "vocab_size": 10}}, 500),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}}, 4000),
        ({"max_position_embeddings": 1000, "vocab_size": None}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_context_is_read_from_every_kind_of_configuration(config: dict[str, Any], context: int | None) -> None:
    checkpoint = Checkpoint(Path(), {"model_type": "x", "vocab_size": 10, **config}, {}, {})
    info = read_static_info(checkpoint, EngineOptions())
    assert (info and info.max_model_len) == context


async def test_banner_names_models_that_are_not_loaded_yet() -> None:
    registry, notes = await create(*TWO, load_on_demand=True)
    for model in registry.served:
        await model.engine.start()
        assert isinstance(model.engine, OnDemandEngine) and model.engine.load_state == "unloaded"
    screen = io.StringIO()
    show_banner(create_console(screen), Settings(), registry, 8000, notes)
    assert screen.getvalue().count("loaded at its first use") == 2
    assert '"model": "one"' in screen.getvalue()


async def test_model_may_stay_while_others_are_unloaded_when_idle() -> None:
    registry, _ = await create(
        *TWO,
        idle_unload_s=0.01,
        model_options=(ModelOption("two", "idle_unload_s", math.inf), ModelOption("one", "load_on_demand", value=True)),
    )
    one, two = (model.engine for model in registry.served)
    assert isinstance(one, OnDemandEngine) and isinstance(two, OnDemandEngine)
    for engine in (one, two):
        engine.inner = GatedEngine()
        await engine.start()
    assert (one.load_state, two.load_state) == ("unloaded", "loaded")
    await one.wait_ready()
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while one.num_unloads == 0:
            await asyncio.sleep(0.001)
    assert (one.load_state, two.load_state) == ("unloaded", "loaded")


# Estimates


def weights(gib: float) -> MemoryEstimate:
    return MemoryEstimate(0, int(gib * GIB))


def test_models_that_fit_at_once_share_the_rest() -> None:
    estimates = [weights(2), weights(4), weights(1)]
    process_gib = PROCESS_BYTES / GIB
    expected = (16 * HEADROOM - 7 - 3 * process_gib) / 2  # the third is an encoder, which has no cache
    assert [divide_cache(estimates, index, 2, 16) for index in (0, 1)] == pytest.approx([expected] * 2)


def test_models_that_do_not_fit_at_once_have_a_cache_of_fixed_size() -> None:
    estimates = [weights(6), weights(7), weights(9)]
    sizes = [divide_cache(estimates, index, 3, 8) for index in range(3)]
    assert sizes[0] == SHARED_CACHE_BYTES / GIB
    assert sizes[1:] == [MIN_CACHE_BYTES / GIB] * 2


def test_estimate_knows_the_form_of_the_weights() -> None:
    plain = Checkpoint(Path(), {}, {}, {"BF16": 1000})
    packed = Checkpoint(Path(), {"quantization_config": {"quant_method": "gptq"}}, {}, {"I32": 125, "F16": 10})
    expected = {None: 4000, "int8": 1300, "int4": 900}
    for quantization, size in expected.items():
        options = EngineOptions(quantization=quantization)  # type: ignore[arg-type]
        assert estimate_weights(plain, options).expected == size
        assert estimate_weights(plain, options).least < size
        assert estimate_weights(packed, options).expected == {None: 629, "int8": 1111, "int4": 629}[quantization]
    in_fp32 = EngineOptions(dtype="float32")
    assert estimate_weights(packed, in_fp32).expected == 4444 and estimate_weights(plain, in_fp32).expected == 4400
    on_gpu = EngineOptions(device="cuda:0")  # as they are stored
    assert estimate_weights(packed, on_gpu).expected == 676
    assert estimate_weights(plain, EngineOptions(device="cuda:0")).expected == 2000


@pytest.mark.parametrize("engine", ["scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"])
async def test_only_a_model_that_runs_here_has_a_draft_model(engine: Any) -> None:
    options = ServeOptions(engine=engine, engine_options=EngineOptions(draft_model="small"))
    with pytest.raises(ServeError, match="--draft-model requires --engine torch"):
        await create_models(options, Settings(), lambda *_: None, WorkerProcess)


async def test_draft_model_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    for file in MODEL_DIR.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    registry, _ = await create(str(MODEL_DIR), load_on_demand=True, engine={"draft_model": str(tmp_path)})
    assert registry.served[0].engine.info.vocab_size
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    size = config["text_config"]["vocab_size"]
    config["text_config"]["vocab_size"] = size + 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = f"{size + 2} tokens instead of the model's {size}"
    with pytest.raises(LoadError, match=f"another vocabulary, {sizes}"):
        await create(str(MODEL_DIR), engine={"draft_model": str(tmp_path)})
    with pytest.raises(LoadError, match="missing"):
        await create(str(MODEL_DIR), engine={"draft_model": str(tmp_path / "missing")})
