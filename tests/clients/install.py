"""Installs the clients that tests run, and chat templates, all at once: `python -m tests.clients.install`.

A test installs what it needs if that is missing; this saves the tests the wait. A client that cannot be installed is
named, and its tests are skipped.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.clients.claude_code import install_claude_code
from tests.clients.node_install import install_node_sdk, install_node_servers, install_web_tools
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients
from tests.codex.codex_process import CodexUnavailableError, install_codex
from tests.harmony.real_templates import install_templates


def list_installers() -> dict[str, Callable[[], object]]:
    """Returns the function that installs each client or group of clients."""
    python = {
        lock.stem: partial(install_python_clients, lock.stem)
        for lock in sorted(PROGRAMS_FOLDER.glob("*.lock"))
        if not lock.stem.startswith("node")
    }
    node = {"node": install_node_sdk, "node servers": install_node_servers, "web tools": install_web_tools}
    return {
        **node,
        "templates": install_templates,
        "claude-code": install_claude_code,
        "codex": install_codex,
        **python,
    }


def install_client(name: str, install: Callable[[], object]) -> str:
    """Installs a client. Returns a line about the result."""
    try:
        install()
    except (pytest.skip.Exception, CodexUnavailableError) as reason:
        return f"{name}: not installed: {reason}"
    return f"{name}: installed"


def main() -> None:
    """Installs all clients and prints a line for each."""
    installers = list_installers()
    with ThreadPoolExecutor(len(installers)) as pool:
        for line in pool.map(install_client, installers, installers.values()):
            print(line)


if __name__ == "__main__":
    main()
