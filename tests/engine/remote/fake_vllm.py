"""A command that behaves like `vllm serve`: it serves a fake server on the socket of `--uds`, with a worker process.

`FAKE_VLLM_ERROR` makes it fail at its start with this message.
"""

import asyncio
import os
import sys

from tests.engine.remote.fake_server import FakeServer, play_vllm
from tests.engine.remote.remote_helpers import EOS, encode, follow_grammars


async def main() -> None:
    print("INFO starting", sys.argv[1:], flush=True)
    if message := os.environ.get("FAKE_VLLM_ERROR"):
        sys.exit(f"ValueError: {message}")
    await asyncio.create_subprocess_exec("sleep", "1000")
    server = FakeServer(encode, play_vllm(50, EOS), follow_grammars)
    server.socket_path = sys.argv[sys.argv.index("--uds") + 1]
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
