"""Loading a checkpoint folder: model, device and defaults, downloads, and one-line errors for unusable folders."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint import hub
from antiphon.engine.checkpoint.files import Checkpoint, inspect_checkpoint
from antiphon.engine.checkpoint.generation_settings import sampling_defaults
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.errors import LoadError
from antiphon.engine.load import loader
from antiphon.engine.load.load_method import check_memory, choose_device
from antiphon.engine.load.loader import engine_info, load_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.core import Core
from tests.engine.tiny_models import (
    copy_tiny_model,
    generate_tokens,
    generate_with_transformers,
    make_job,
    make_prompts,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    copy_tiny_model("llama").save_pretrained(path)
    return path


@pytest.fixture
def checkpoint_copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may damage."""
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def update_json(path: Path, **changes: Any) -> int:
    fields = json.loads(path.read_text()) if path.exists() else {}
    return path.write_text(json.dumps({key: value for key, value in (fields | changes).items() if value is not None}))


def catch_load_error(call: Callable[[], object]) -> str:
    with pytest.raises(LoadError) as caught:
        call()
    assert "\n" not in str(caught.value) and caught.value.code == "model_not_loadable"
    return str(caught.value)


def test_saved_model_is_loaded_with_its_configuration(checkpoint_copy: Path) -> None:
    update_json(
        checkpoint_copy / "generation_config.json",
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        eos_token_id=[2, 5],
        do_sample=True,
    )
    core = build_core(checkpoint_copy, EngineOptions(max_num_seqs=2, kv_cache_gib=0.01))
    assert core.info.default_sampling == Sampling(temperature=0.6, top_k=20, top_p=0.95)
    assert (core.info.max_model_len, core.info.vocab_size, core.info.eos_ids) == (256, 96, (2, 5))
    assert (core.info.device, core.info.dtype) == ("cpu", "float32")
    assert core.info.description.startswith("LlamaForCausalLM, 0.0 M")
    prompt = make_prompts(9)[0]
    assert (
        generate_tokens(core, make_job(prompt, max_tokens=12, ignore_eos=True))[:3]
        == generate_with_transformers("llama", prompt, 12)[:3]
    )


def test_weights_are_converted_to_the_requested_dtype(tmp_path: Path) -> None:
    copy_tiny_model("llama").bfloat16().save_pretrained(tmp_path)
    assert inspect_checkpoint(tmp_path).elements_by_dtype.keys() == {"BF16"}
    assert load_model(tmp_path, device="cpu")[0].dtype == torch.float32
    assert load_model(tmp_path, device="cpu", dtype="bfloat16")[0].dtype == torch.bfloat16
    assert "float32, bfloat16, float16" in catch_load_error(lambda: load_model(tmp_path, dtype="int3"))


BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, head size, bytes


def gib_for_tokens(tokens: int) -> float:
    return tokens * BYTES_PER_TOKEN / 2**30


def test_small_kv_cache_limits_the_context_length(checkpoint_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    update_json(checkpoint_copy / "config.json", max_position_embeddings=1024)
    core = build_core(checkpoint_copy, EngineOptions(kv_cache_gib=gib_for_tokens(300)))
    assert core.info.max_model_len == 300
    assert "limits the context to 300 tokens (the model supports 1024)" in caplog.text
    assert "--kv-cache-gib 0.000977" in caplog.text  # for the whole context
    caplog.clear()
    assert build_core(checkpoint_copy, EngineOptions(kv_cache_gib=gib_for_tokens(1024))).info.max_model_len == 1024
    assert "context" not in caplog.text


@pytest.mark.parametrize(
    ("max_position_embeddings", "max_model_len", "cached", "needed"),
    [
        (1024, None, 1, 256),
        (1024, None, 255, 256),
        (100, None, 99, 100),
        (1024, 600, 599, 600),
        (1024, 40, 39, 40),
        (256, 1000, 255, 256),
    ],
)
@pytest.mark.parametrize("paged", [False, True])
def test_kv_cache_that_is_too_small_for_the_context_is_refused_with_the_size_needed(
    checkpoint_copy: Path,
    max_position_embeddings: int,
    max_model_len: int | None,
    cached: int,
    needed: int,
    paged: bool,
) -> None:
    update_json(checkpoint_copy / "config.json", max_position_embeddings=max_position_embeddings)

    def build(gib: float) -> Core:
        return build_core(
            checkpoint_copy, EngineOptions(kv_cache_gib=gib, max_model_len=max_model_len, paged_cache=paged)
        )

    message = catch_load_error(lambda: build(gib_for_tokens(cached)))
    assert f"a context of {needed} tokens needs" in message
    assert ("--max-model-len" in message) == (max_model_len is not None and cached >= 256)
    size = re.search(r"raise --kv-cache-gib to ([0-9.]+)", message)
    assert size is not None, message
    assert build(float(size[1])).info.max_model_len >= needed


def test_free_memory_that_is_too_small_for_the_context_is_refused(
    checkpoint_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_json(checkpoint_copy / "config.json", max_position_embeddings=1024)
    monkeypatch.setattr("antiphon.engine.cache_budget.free_memory", lambda _: 100 * BYTES_PER_TOKEN)
    message = catch_load_error(lambda: build_core(checkpoint_copy, EngineOptions()))
    assert "a context of 256 tokens needs" in message and "free memory" in message
    assert "--kv-cache-gib" not in message


def test_context_beyond_the_models_is_cut_with_a_warning(
    checkpoint_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert build_core(checkpoint_copy, EngineOptions(max_model_len=256)).info.max_model_len == 256
    assert "context" not in caplog.text
    assert build_core(checkpoint_copy, EngineOptions(max_model_len=1000)).info.max_model_len == 256
    assert "context of 1000 tokens is cut to 256" in caplog.text


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 256),
        ({"type": "yarn", "factor": 2.5}, 640),
        ({"rope_type": "linear", "factor": 4.0}, 256),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            256,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_yarn_extends_the_context(checkpoint_copy: Path, scaling: dict[str, Any], context: int) -> None:
    update_json(checkpoint_copy / "config.json", rope_scaling=scaling, rope_parameters=None)
    core = build_core(checkpoint_copy, EngineOptions(kv_cache_gib=0.01))
    assert core.info.max_model_len == context
    assert build_core(checkpoint_copy, EngineOptions(max_model_len=100)).info.max_model_len == 100


def test_suppressed_tokens_and_token_limit_of_the_generation_config_are_applied(
    checkpoint_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = make_prompts(9)[0]
    suppressed = sorted(set(generate_with_transformers("llama", prompt, 12)))
    update_json(
        checkpoint_copy / "generation_config.json",
        suppress_tokens=suppressed,
        max_new_tokens=7,
        no_repeat_ngram_size=3,
        bad_words_ids=None,
    )
    core = build_core(checkpoint_copy, EngineOptions(kv_cache_gib=0.01))
    assert core.info.default_sampling.max_tokens == 7
    for options in ({}, {"logit_bias": {suppressed[0]: 100.0}}, {"temperature": 1.0, "seed": 3}):
        tokens = generate_tokens(core, make_job(prompt, max_tokens=12, ignore_eos=True, **options))
        assert len(tokens) == 12 and not set(tokens) & set(suppressed)
    assert "no_repeat_ngram_size" in caplog.text and "bad_words_ids" not in caplog.text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "config.json").unlink(), "no config.json"),
        (lambda p: (p / "config.json").write_text("{"), "not readable as JSON"),
        (lambda p: (p / "config.json").write_text("[]"), "not a JSON object"),
        (lambda p: update_json(p / "config.json", model_type=None), "no model_type"),
        (lambda p: update_json(p / "config.json", architectures=["BertForMaskedLM"]), "not a causal language model"),
        (lambda p: update_json(p / "config.json", model_type="foonet"), "does not know foonet"),
        (lambda p: update_json(p / "config.json", model_type="foonet", architectures=["Foo"]), "does not know foonet"),
        (lambda p: update_json(p / "config.json", model_type="foonet", auto_map={"AutoModel": "x.Y"}), "never run"),
        (lambda p: (p / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"), "convert them to safetensors"),
        (
            lambda p: (
                (p / "model.safetensors").rename(p / "adapter_model.safetensors")
                and update_json(p / "adapter_config.json")
            ),
            "adapter",
        ),
        (lambda p: (p / "model.safetensors").write_bytes(b"version https://git-lfs"), "git lfs pull"),
        (lambda p: (p / "model.safetensors").write_bytes(b"abc"), "cut short"),
        (lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"), "not safetensors"),
        (lambda p: truncate_file(p / "model.safetensors", 100), "fetch it again"),
        (
            lambda p: update_json(p / "model.safetensors.index.json", weight_map={"a": "m-1-of-2"}),
            "m-1-of-2 is missing",
        ),
        (lambda p: update_json(p / "model.safetensors.index.json", weight_map={}), "finish the download"),
        (lambda p: update_json(p / "config.json", num_hidden_layers=3), "9 weights are missing (model.layers.2."),
        (lambda p: change_tensors(p, "model.norm.weight"), "1 weight is missing (model.norm.weight); fetch"),
        (
            lambda p: change_tensors(p, "model.layers.1.mlp.down_proj.weight", torch.zeros(32, 47)),
            "the weight model.layers.1.mlp.down_proj.weight has the shape 32 x 47, and config.json requires 32 x 48",
        ),
        (lambda p: update_json(p / "config.json", hidden_size="wide"), "cannot be loaded"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_unusable_folder_is_reported_in_one_line(
    checkpoint_copy: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(checkpoint_copy)
    assert message in catch_load_error(lambda: load_model(checkpoint_copy, device="cpu"))


def change_tensors(folder: Path, name: str, tensor: torch.Tensor | None = None) -> None:
    """Replaces a weight in the file, or removes it."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    save_file(tensors | ({} if tensor is None else {name: tensor}), folder / "model.safetensors", {"format": "pt"})


def truncate_file(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def test_missing_folder_is_reported_in_one_line(checkpoint_copy: Path) -> None:
    assert "no such folder" in catch_load_error(lambda: load_model(checkpoint_copy / "absent"))
    assert "is a file" in catch_load_error(lambda: load_model(checkpoint_copy / "config.json"))


def test_insufficient_memory_is_reported_in_one_line(checkpoint_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Checkpoint(Path("large"), {}, {}, {"BF16": 20_000_000_000})
    assert "needs 74.5 GiB for its weights, 10.0 GiB are free" in catch_load_error(
        lambda: check_memory(large, 4, 10 * 2**30)
    )
    check_memory(large, 4, None)
    check_memory(Checkpoint(Path("packed"), {"quantization_config": {}}, {}, {"U8": 9 * 2**30}), 4, 10 * 2**30)
    monkeypatch.setattr(loader, "free_memory", lambda device: 1000)
    assert "choose a smaller model" in catch_load_error(lambda: load_model(checkpoint_copy, device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_missing_device_is_reported_in_one_line() -> None:
    assert choose_device(None) == "cpu"
    assert "no CUDA device" in catch_load_error(lambda: choose_device("cuda"))


def test_sampling_defaults_come_only_from_the_generation_config() -> None:
    assert sampling_defaults({}) == Sampling()
    assert sampling_defaults({"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert sampling_defaults({"repetition_penalty": 1.1, "top_k": None}) == Sampling(repetition_penalty=1.1)
    recurrent = copy_tiny_model("mamba")
    del recurrent.config.max_position_embeddings
    assert engine_info(recurrent).max_model_len == loader.DEFAULT_CONTEXT_TOKENS


def test_described_size_is_that_of_the_checkpoint() -> None:
    """Weights that were repacked for this machine are no parameters of the model any more."""
    checkpoint = Checkpoint(Path("some"), {}, {}, {"BF16": 2_632_512})
    assert engine_info(copy_tiny_model("llama"), checkpoint).description == "LlamaForCausalLM, 2.6 M parameters"


def test_existing_folder_is_used_unchanged(checkpoint_copy: Path) -> None:
    assert fetch_checkpoint(str(checkpoint_copy)) == checkpoint_copy
    error = catch_load_error(lambda: fetch_checkpoint(str(checkpoint_copy), revision="v1"))
    assert "--revision requires a model of the hub" in error


@pytest.mark.parametrize(
    ("name", "offline", "message"),
    [
        ("RepositoryNotFoundError", False, "no such model on the hub"),
        (
            "RevisionNotFoundError",
            False,
            "owner/name (revision v1): the model is on the hub, but it has no such revision",
        ),
        ("GatedRepoError", False, "accept its terms"),
        ("LocalEntryNotFoundError", False, "cannot be reached"),
        ("LocalEntryNotFoundError", True, "without --offline"),
        ("HfHubHTTPError", False, "goes on where it stopped"),
    ],
)
def test_failed_download_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, offline: bool, message: str
) -> None:
    import huggingface_hub

    received: dict[str, Any] = {}

    def download(source: str, **options: Any) -> str:
        received.update(options)
        raise type(name, (Exception,), {})("a\nlong\nstory")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert message in catch_load_error(lambda: fetch_checkpoint("owner/name", offline=offline, revision="v1"))
    assert received["local_files_only"] is offline and received["revision"] == "v1"
    assert not any(pattern.endswith((".bin", ".py", ".pt")) for pattern in received["allow_patterns"])
    assert "not a hub id" in catch_load_error(lambda: fetch_checkpoint("some/where/else"))


def test_download_leaves_out_other_formats_and_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    ]
    others = [
        "original/consolidated.00.pth",
        "original/params.json",
        "original/tokenizer.model",
        "onnx/model.safetensors",
        "vae/config.json",
        "assets/encoder.tiktoken",
        "modeling.py",
        "additional_chat_templates/code.py",
        "consolidated.safetensors",
        "pytorch_model.bin",
    ]
    fetched: list[str] = []

    def download(source: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: object) -> str:
        names = filter_repo_objects(needed + others, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        fetched.extend(names)
        return str(tmp_path / source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    fetch_checkpoint("owner/name")
    assert fetched == needed


def test_download_returns_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda source, **options: str(tmp_path / source))
    assert fetch_checkpoint("owner/name") == tmp_path / "owner/name"
    assert "*.safetensors" in hub.ALLOWED_PATTERNS


@pytest.mark.parametrize(("options", "adapts"), [({}, True), ({"threads": 2}, False), ({"deterministic": True}, False)])
def test_threads_adapt_to_the_load_unless_their_number_is_given(
    checkpoint_copy: Path, options: dict[str, Any], adapts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[object] = []

    def record_update(governor: object) -> None:
        updates.append(governor)

    monkeypatch.setattr("antiphon.engine.host.thread_governor.ThreadGovernor.update", record_update)
    core = build_core(checkpoint_copy, EngineOptions(kv_cache_gib=0.01, **options))
    assert (len(updates) >= 3) == adapts, "while loading"
    updates.clear()
    generate_tokens(core, make_job(make_prompts(9)[0], max_tokens=3, ignore_eos=True))
    assert (len(updates) >= 3) == adapts
