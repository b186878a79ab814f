"""A server with a scripted model that sees, as a process of its own, so that its memory can be measured."""

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.app import context
from antiphon.app.media.budget import MediaLimits
from antiphon.engine.process.resident_memory import read_resident_bytes
from tests.clients.media.vision_model import SAY_IMAGES, vision_registry
from tests.serving import serve

CPU_LIMIT_S = 1.0
"""CPU time for one image. The default of 10 s would make the test slow."""
WORDS = [f"word{number} " for number in range(20)]
SCRIPT = (
    {"name": "tale", "when": ["Tell a tale."], "output": [step for word in WORDS for step in (word, {"pause": 0.02})]},
    {**SAY_IMAGES, "when": ["Look:"]},
)


class SeparateServer:
    """A server in another process."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._pid = pid

    def read_bytes(self) -> int:
        """Returns the resident memory of the server, without that of its workers."""
        found = read_resident_bytes(self._pid)
        assert found is not None
        return found


@contextmanager
def run_server(folder: Path) -> Iterator[SeparateServer]:
    """Runs a server for the model in a folder."""
    command = [sys.executable, "-m", "tests.clients.media.hostile_server", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield SeparateServer(process.stdout.readline().strip(), process.pid)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main() -> None:
    """Serves until standard input is closed. Prints the URL."""
    context.MediaLimits = functools.partial(MediaLimits, cpu_limit_s=CPU_LIMIT_S)  # type: ignore[assignment,misc]
    registry = vision_registry(Path(sys.argv[1]), SCRIPT)
    with serve(registry, max_image_mib=4, max_body_bytes=64 << 20, image_tokens=64, media_memory_mib=16) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
