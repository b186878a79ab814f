"""The servers that are compared: where each lives, how it is started, what it is called."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.install import COMPILED, DONE, ENVS, HOME, ROOT
from tests.bench.load_client import Api
from tests.bench.models import MODELS, build

CROWD = 128
"""Streams that a GPU is asked for at once."""

SLOT = 512
"""Tokens of context for each stream, where a server has to be told."""


def slots(model: str) -> int:
    """Streams that a server is told to expect where it has to know; memory for more of the large model is not there."""
    return 16 if model == "small" else 64


@dataclass(frozen=True)
class Peer:
    """One server, not started."""

    name: str
    words: Callable[[Path, int], list[str]]
    """Model folder and port to command line."""
    packages: tuple[str, ...]
    """Whose versions name it."""
    env: str | None = None
    """Its environment under `ENVS`; None: Antiphon's."""
    api: Api = "responses"
    most: int = 64
    """More streams than this are not asked of it."""
    bytes_per_weight: float = 4.0
    """What a step reads at least, for the roofline."""
    environ: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ("small", "tiny")
    by_path: bool = False
    """Whether requests name the model by its folder's path."""
    gpu: bool = False
    """Whether it runs on a GPU."""

    @property
    def ours(self) -> bool:
        """Whether this is Antiphon."""
        return self.name.startswith("antiphon")

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return Path(sys.executable) if self.env is None else ENVS / self.env / "bin" / "python"

    def absent(self, model: str) -> str | None:
        """Why it cannot take part, or None."""
        if model not in self.models:
            return f"is not run on {model}"
        if self.env is not None and not (ENVS / self.env / DONE).exists():
            return f"{ENVS / self.env} is not there; make bench-peers installs it"
        if self.gpu and not self._sees_gpu():
            return "its torch sees no GPU"
        return None

    def _sees_gpu(self) -> bool:
        code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        return subprocess.run([self.python, "-c", code], capture_output=True, check=False).returncode == 0

    def versions(self) -> str:
        """What was compiled, or its packages and their versions."""
        if self.env is not None and (compiled := ENVS / self.env / COMPILED).exists():
            return compiled.read_text()
        code = "import importlib.metadata as m, sys\nfor n in sys.argv[1:]:\n try: print(n, m.version(n))\n except m.PackageNotFoundError: pass"
        done = subprocess.run([self.python, "-c", code, *self.packages], capture_output=True, text=True, check=True)
        return ", ".join(done.stdout.splitlines())


def _antiphon(*more: str) -> Callable[[Path, int], list[str]]:
    return lambda model, port: [
        *(sys.executable, "-m", "antiphon.app.cli", "serve", str(model)),
        *("--served-model-name", model.name, "--port", str(port), *more),
    ]


def _vllm(dtype: str) -> Callable[[Path, int], list[str]]:
    return lambda model, port: [
        *(str(ENVS / "vllm" / "bin" / "vllm"), "serve", str(model), "--served-model-name", model.name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", "4096"),
    ]


def _transformers(*more: str, on: tuple[str, str] = ("cpu", "float32")) -> Callable[[Path, int], list[str]]:
    return lambda model, port: [
        *(str(ENVS / "transformers" / "bin" / "transformers"), "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", on[0], "--dtype", on[1], *more),
    ]


def _batching(model: Path, port: int) -> list[str]:
    """With a bound on its cache, in blocks of 256 tokens: left alone it takes most of the memory there is."""
    blocks = str(2 * slots(model.name))
    return _transformers("--continuous-batching", "--cb-num-blocks", blocks, "--cb-max-batch-tokens", "2048")(
        model, port
    )


def _llama(model: Path, port: int) -> list[str]:
    """q8_0 where weights are what is read, f16 where they are next to nothing. Every server draws from all tokens."""
    kind = "f16" if model.name == "tiny" else "q8_0"
    file = MODELS / f"{model.name}-{kind}.gguf"
    home = ENVS / "llama" / "bin"
    expect = slots(model.name)
    if not file.exists():
        maker = ROOT / "tests" / "bench" / "gguf_file.py"
        subprocess.run([home / "python", maker, build(model.name), file, kind], check=True)
    if not (home / "llama-server").exists():
        script = ROOT / "tests" / "bench" / "llama_server.py"
        return [str(home / "python"), str(script), str(file), str(port), str(expect), str(expect * SLOT)]
    return [
        *(str(home / "llama-server"), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), "--jinja"),
        *("--alias", model.name, "--parallel", str(expect), "--ctx-size", str(expect * SLOT)),
        *("--samplers", "temperature", "--temp", "1"),
    ]


KEPT = ("--kv-cache-gib", os.environ.get("KV_GIB", "1"))
"""Memory for keys and values, no more than vLLM gets: what is kept for later turns would fill the machine otherwise."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(HOME / "hub"), "TOKENIZERS_PARALLELISM": "false"}
VLLM = OFFLINE | {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": str(HOME / "vllm"),
    "PATH": f"{ENVS / 'vllm' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
}
_ALL = ("small", "tiny", "oss", "embedded")
_OURS = ("antiphon", "torch", "transformers")

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("antiphon", _antiphon(*KEPT), _OURS, models=_ALL),
        Peer("antiphon-int8", _antiphon("--quantization", "int8", *KEPT), _OURS, bytes_per_weight=1.0, models=_ALL),
        Peer("vllm-fp32", _vllm("float32"), ("vllm", "torch"), "vllm", environ=VLLM),
        Peer("vllm-bf16", _vllm("bfloat16"), ("vllm", "torch"), "vllm", bytes_per_weight=2.0, environ=VLLM),
        Peer("llama.cpp", _llama, ("xllamacpp",), "llama", bytes_per_weight=1.0625),
        Peer(
            "transformers",
            _transformers(),
            ("transformers", "torch"),
            "transformers",
            most=4,
            environ=OFFLINE,
            by_path=True,
        ),
        Peer(
            "transformers-cb",
            _batching,
            ("transformers", "torch"),
            "transformers",
            environ=OFFLINE,
            by_path=True,
        ),
        Peer(
            "antiphon-gpu",
            _antiphon("--device", "cuda", "--max-num-seqs", str(CROWD)),
            _OURS,
            most=CROWD,
            bytes_per_weight=2.0,
            models=_ALL,
            gpu=True,
        ),
        Peer(
            "transformers-gpu",
            _transformers("--continuous-batching", on=("cuda", "bfloat16")),
            ("transformers", "torch"),
            "transformers",
            most=CROWD,
            bytes_per_weight=2.0,
            environ=OFFLINE,
            by_path=True,
            gpu=True,
        ),
    )
}
