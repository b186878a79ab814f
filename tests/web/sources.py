"""Checks the modules of the page: `python -m tests.web.sources` runs the type checker, then the linter.

Both come from npm by a lock file, into `build`. Where npm is missing, the command says so and checks nothing.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.node_install import install_web_tools
from tests.syntax import ROOT

WEB = ROOT / "web"
MAX_MODULE_LINES = 250


def list_modules() -> list[Path]:
    """Returns the modules of the page, without the vendored ones."""
    return sorted(path for path in WEB.rglob("*.js") if "vendor" not in path.relative_to(WEB).parts)


def check_types(tools: Path) -> str:
    """Returns what the type checker says about the modules; nothing if they have no fault."""
    return _run_tool([tools / ".bin" / "tsc", "--project", WEB / "tsconfig.json", "--pretty", "false"])


def check_lint(tools: Path) -> str:
    """Returns what the linter and formatter says about the modules; nothing if they have no fault."""
    return _run_tool([tools / ".bin" / "biome", "ci", "--colors=off", "."])


def _run_tool(command: list[str | Path]) -> str:
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> None:
    """Prints the faults of the modules, and exits with 1 if there are any."""
    try:
        tools = install_web_tools()
    except pytest.skip.Exception as reason:
        print(f"web/ is not checked: {reason}")
        return
    faults = check_types(tools) + check_lint(tools)
    print(faults or f"web/: {len(list_modules())} modules checked, no fault.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
