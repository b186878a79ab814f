"""Memory of large requests: it is returned to the system after they have ended."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready
from tests.syntax import ROOT

NUM_REQUESTS = 6
NUM_KEYS = 40_000
TEXT_CHARS = 500
MAX_GROWTH_MIB = 100
"""Far below what stays without a release: about 50 MiB for the 20 MB of each request."""


def read_memory_mib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 // 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_large_requests_is_returned(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "hello"\noutput = ["Hello."]\n', encoding="utf-8")
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    command += ["--port", "0", "--store", str(tmp_path / "responses.db"), "--log-format", "json"]
    metadata = {f"k{number}": "d" * TEXT_CHARS for number in range(NUM_KEYS)}
    body = {"model": "scripted", "input": "Hi", "client_metadata": metadata, "stream": True}
    content = json.dumps(body).encode()
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            (url,) = read_until_ready(process.stderr)["base_urls"]
            with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
                client.post(f"{url}/responses", json={"model": "scripted", "input": "Hi"})
                before = read_memory_mib(process.pid)

                def post() -> None:
                    headers = {"content-type": "application/json"}
                    with client.stream("POST", f"{url}/responses", content=content, headers=headers) as reply:
                        assert reply.status_code == 200
                        for _ in reply.iter_bytes():
                            pass

                threads = [threading.Thread(target=post) for _ in range(NUM_REQUESTS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            deadline = time.monotonic() + HANG_TIMEOUT_S
            while read_memory_mib(process.pid) - before > MAX_GROWTH_MIB and time.monotonic() < deadline:
                time.sleep(0.1)
            assert read_memory_mib(process.pid) - before <= MAX_GROWTH_MIB
        finally:
            process.kill()
            process.stderr.close()
