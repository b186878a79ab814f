"""The servers of the comparison: command line, environment and limits of each. Nothing is started here."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.app.remote.launch import VLLM_FLAGS
from bench.gpt_oss_model import find_oss_shape
from bench.install import BENCH_DIR, BUILD_INFO, DONE_MARKER, ENVS_DIR, find_script
from bench.load_client import Api
from bench.random_models import MODELS_DIR, create_model

BuildCommand = Callable[[Path, int], list[str]]
"""Returns the command line for a model folder and a port."""

UPSTREAM = "{upstream}"
"""Place of the base URL of the server in a command line, for a peer that stands in front of another one."""

GPU_MAX_STREAMS = 128
"""Most concurrent streams that are sent to a server on a GPU."""

CONTEXT_PER_SLOT = 512
"""Tokens of context per stream, for servers that reserve them at start."""


def slot_count(model: str) -> int:
    """Returns the number of streams to reserve at start. Memory does not suffice for more slots of the large models."""
    return 16 if base_name(model) in ("small", "oss20b") else 64


def base_name(model: str) -> str:
    """Returns a model's name without its number of layers."""
    return model.partition("-")[0]


@dataclass(frozen=True)
class Peer:
    """A server of the comparison, not started."""

    name: str
    build_command: BuildCommand
    packages: tuple[str, ...]
    """Packages whose versions the report shows."""
    env_name: str | None = None
    """Name of its environment in `ENVS_DIR`, or None for Antiphon's own."""
    api: Api = "responses"
    max_streams: int = 64
    """Most concurrent streams that are sent to it."""
    bytes_per_weight: float = 4.0
    """Bytes that a step reads at least per weight, for the roofline."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ("small", "tiny")
    model_by_path: bool = False
    """True if requests name the model by the path of its folder."""
    needs_gpu: bool = False
    in_front_of: str | None = None
    """Name of the peer whose running server it uses. That server must be started before, and is not paused."""

    @property
    def is_antiphon(self) -> bool:
        """True if this is Antiphon."""
        return self.name.startswith("antiphon")

    @property
    def python(self) -> Path:
        """Python interpreter of its environment."""
        return Path(sys.executable) if self.env_name is None else ENVS_DIR / self.env_name / "bin" / "python"

    def unavailable_reason(self, model: str) -> str | None:
        """Returns the reason why it cannot serve this model here, or None if it can."""
        if base_name(model) not in self.models:
            return f"does not run the model {model}"
        if self.env_name is not None and not (ENVS_DIR / self.env_name / DONE_MARKER).exists():
            return f"{ENVS_DIR / self.env_name} is missing; install it with `make bench-peers`"
        if self.needs_gpu and not self._finds_gpu():
            return "its torch finds no GPU"
        return None

    def _finds_gpu(self) -> bool:
        code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        return subprocess.run([self.python, "-c", code], capture_output=True, check=False).returncode == 0

    def read_versions(self) -> str:
        """Returns the description of a compiled server, otherwise its packages and their versions."""
        if self.env_name is not None and (build_info := ENVS_DIR / self.env_name / BUILD_INFO).exists():
            return build_info.read_text()
        code = "import importlib.metadata as m, sys\nfor n in sys.argv[1:]:\n try: print(n, m.version(n))\n except m.PackageNotFoundError: pass"
        process = subprocess.run([self.python, "-c", code, *self.packages], capture_output=True, text=True, check=True)
        return ", ".join(process.stdout.splitlines())


def _antiphon_command(*options: str) -> BuildCommand:
    """A gpt-oss with the made-up vocabulary has no tokens for its own dialect."""
    return lambda model, port: [
        *(sys.executable, "-m", "antiphon", "serve", str(model)),
        *("--served-model-name", model.name, "--port", str(port), *options),
        *(("--dialect", "hermes") if find_oss_shape(model.name) else ()),
    ]


def _quantized_antiphon_command(form: str) -> BuildCommand:
    """Models whose names begin with "oss" have random routers, near ties: an error of 8 bits chooses other experts."""
    return lambda model, port: [
        *_antiphon_command("--quantization", form, *KV_CACHE_OPTIONS)(model, port),
        *(("--force-quantization",) if model.name.startswith("oss") else ()),
    ]


def _vllm_command(dtype: str) -> BuildCommand:
    return lambda model, port: [
        *(str(ENVS_DIR / "vllm" / "bin" / "vllm"), "serve", str(model), "--served-model-name", model.name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", "4096"),
    ]


def _vllm_for_antiphon_command(model: Path, port: int) -> list[str]:
    """Starts vLLM in bf16 with the flags that Antiphon needs."""
    return [*_vllm_command("bfloat16")(model, port), *VLLM_FLAGS]


def _antiphon_over_vllm_command(model: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "antiphon", "serve", "--engine", "vllm", "--engine-url", UPSTREAM),
        *("--tokenizer", str(model), "--served-model-name", model.name, "--port", str(port), "--store", "memory"),
    ]


def _transformers_command(*options: str, device: str = "cpu", dtype: str = "float32") -> BuildCommand:
    return lambda model, port: [
        *(str(ENVS_DIR / "transformers" / "bin" / "transformers"), "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", device, "--dtype", dtype, *options),
    ]


def _continuous_batching_command(model: Path, port: int) -> list[str]:
    """Limits the cache, in blocks of 256 tokens. By default it takes most of the memory of the machine."""
    blocks = str(2 * slot_count(model.name))
    options = ("--continuous-batching", "--cb-num-blocks", blocks, "--cb-max-batch-tokens", "2048")
    return _transformers_command(*options)(model, port)


def _llama_command(model: Path, port: int) -> list[str]:
    """Starts llama.cpp with the weights that it is fastest with while they have 8 bits or more, experts in MXFP4.

    That is f16 for `tiny`, whose layers are small, and q8_0 for others, since reading weights limits their speed.
    """
    if find_oss_shape(model.name):
        return _llama_command_for_format(model, port, "mxfp4")
    return _llama_command_for_format(model, port, "f16" if model.name == "tiny" else "q8_0")


def _llama_4_bit_command(model: Path, port: int) -> list[str]:
    return _llama_command_for_format(model, port, "q4_0")


def _llama_command_for_format(model: Path, port: int, format_name: str) -> list[str]:
    """Converts the model first if there is no GGUF file of it. As with every server, sampling is from all tokens."""
    file = MODELS_DIR / f"{model.name}-{format_name}.gguf"
    bin_dir = ENVS_DIR / "llama" / "bin"
    slots = slot_count(model.name)
    context = str(slots * CONTEXT_PER_SLOT)
    if not file.exists():
        command = [bin_dir / "python", find_script("gguf_file"), create_model(model.name), file, format_name]
        subprocess.run(command, check=True)
    if not (bin_dir / "llama-server").exists():
        script = find_script("llama_server")
        return [str(bin_dir / "python"), script, str(file), str(port), str(slots), context]
    return [
        *(str(bin_dir / "llama-server"), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), "--jinja"),
        *("--alias", model.name, "--parallel", str(slots), "--ctx-size", context),
        *("--samplers", "temperature", "--temp", "1"),
    ]


KV_CACHE_OPTIONS = ("--kv-cache-gib", os.environ.get("KV_GIB", "1"))
"""Limit of Antiphon's KV cache, below vLLM's. Without it, the prefix cache would fill the memory of the machine."""

HF_ENV = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(BENCH_DIR / "hub"), "TOKENIZERS_PARALLELISM": "false"}
VLLM_ENV = HF_ENV | {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": str(BENCH_DIR / "vllm"),
    "PATH": f"{ENVS_DIR / 'vllm' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
}
ALL_MODELS = ("small", "tiny", "oss", "oss20b", "osstiny", "embedded")
GGUF_MODELS = ("small", "tiny", "oss20b", "osstiny")
ANTIPHON_PACKAGES = ("antiphon", "torch", "transformers")

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("antiphon", _antiphon_command(*KV_CACHE_OPTIONS), ANTIPHON_PACKAGES, models=ALL_MODELS),
        Peer(
            "antiphon-int8",
            _quantized_antiphon_command("int8"),
            ANTIPHON_PACKAGES,
            bytes_per_weight=1.0,
            models=ALL_MODELS,
        ),
        Peer(
            "antiphon-int4",
            _quantized_antiphon_command("int4"),
            ANTIPHON_PACKAGES,
            bytes_per_weight=0.53125,
            models=ALL_MODELS,
        ),
        Peer("vllm-fp32", _vllm_command("float32"), ("vllm", "torch"), "vllm", env_vars=VLLM_ENV),
        Peer(
            "vllm-bf16",
            _vllm_command("bfloat16"),
            ("vllm", "torch"),
            "vllm",
            bytes_per_weight=2.0,
            env_vars=VLLM_ENV,
        ),
        Peer(
            "vllm-guided",
            _vllm_for_antiphon_command,
            ("vllm", "torch"),
            "vllm",
            bytes_per_weight=2.0,
            env_vars=VLLM_ENV,
        ),
        Peer(
            "antiphon-vllm",
            _antiphon_over_vllm_command,
            ANTIPHON_PACKAGES,
            bytes_per_weight=2.0,
            in_front_of="vllm-guided",
        ),
        Peer("llama.cpp", _llama_command, ("xllamacpp",), "llama", bytes_per_weight=1.0625, models=GGUF_MODELS),
        Peer("llama.cpp-q4_0", _llama_4_bit_command, ("xllamacpp",), "llama", bytes_per_weight=0.5625),
        Peer(
            "transformers",
            _transformers_command(),
            ("transformers", "torch"),
            "transformers",
            max_streams=4,
            env_vars=HF_ENV,
            model_by_path=True,
        ),
        Peer(
            "transformers-cb",
            _continuous_batching_command,
            ("transformers", "torch"),
            "transformers",
            env_vars=HF_ENV,
            model_by_path=True,
        ),
        Peer(
            "antiphon-gpu",
            _antiphon_command("--device", "cuda", "--max-num-seqs", str(GPU_MAX_STREAMS)),
            ANTIPHON_PACKAGES,
            max_streams=GPU_MAX_STREAMS,
            bytes_per_weight=2.0,
            models=ALL_MODELS,
            needs_gpu=True,
        ),
        Peer(
            "transformers-gpu",
            _transformers_command("--continuous-batching", device="cuda", dtype="bfloat16"),
            ("transformers", "torch"),
            "transformers",
            max_streams=GPU_MAX_STREAMS,
            bytes_per_weight=2.0,
            env_vars=HF_ENV,
            model_by_path=True,
            needs_gpu=True,
        ),
    )
}
