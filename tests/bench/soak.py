"""A server under mixed traffic with some abuse in it, for a while: what it holds at the end is what it held before.

    python -m tests.bench.soak --minutes 10

Streams, whole replies, background turns that are resumed and cancelled, chats, conversations and WebSockets, and one in
twenty requests an abuse: broken JSON, a client that leaves, a bomb, half a header, a binary frame. Memory, open files
and tasks are read when nothing runs: every half a minute from the moment on at which what a server keeps of its latest
turns, within bounds, is full; `--warm` says how long that takes.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from msgspec import Struct
from websockets.asyncio.client import connect

SCRIPT = """
[[reply]]
name = "stall"
when = ["Forever"]
output = ["On and on", { stall = true }]
[[reply]]
name = "any"
output = ["<think>\\nA thought.\\n</think>\\n\\n", "Word by word, this is what is said to everybody. "]
tokens_per_chunk = 2
"""
CROWD = 12
PAUSE = 3.0
"""Seconds without traffic before anything is read."""


class Held(Struct, frozen=True):
    """What the server holds when nothing runs. `rss` in MiB."""

    at: float
    rss: float
    files: int
    tasks: int
    done: int


class Soak:
    """The crowd, and what came of it."""

    def __init__(self, url: str, pid: int, seed: int) -> None:
        self.url, self.pid = url, pid
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.client = httpx.AsyncClient(timeout=30, verify=False)
        self.began = time.monotonic()
        self.going = asyncio.Event()

    async def run(self, warm: float, seconds: float) -> list[Held]:
        """Traffic for so long, both in seconds; what was held in the second part."""
        crowd = [asyncio.create_task(self._one_of_many()) for _ in range(CROWD)]
        held: list[Held] = []
        while not held or time.monotonic() - self.began < warm + seconds:
            self.going.set()
            await asyncio.sleep(27)
            self.going.clear()
            now = await self._look()
            counts = now.at >= warm
            held += [now] if counts else []
            print(now, "" if counts else "(warming up)", flush=True)
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await self.client.aclose()
        return held

    async def _one_of_many(self) -> None:
        uses: list[Callable[[], Awaitable[str]]] = [
            self.whole, self.stream, self.stream, self.chat, self.background, self.cancelled, self.talk, self.socket,
        ]  # fmt: skip
        abuses = [self.broken, self.leaver, self.bomb, self.half, self.binary]
        while True:
            await self.going.wait()
            use = self.random.choice(abuses if self.random.random() < 0.05 else uses)
            try:
                self.seen[await use()] += 1
            except (httpx.HTTPError, OSError, TimeoutError) as error:
                self.seen[f"{use.__name__}: {type(error).__name__}"] += 1

    async def _look(self) -> Held:
        await asyncio.sleep(PAUSE)
        page = (await self.client.get(f"{self.url.removesuffix('/v1')}/metrics")).text
        assert _number(page, "num_requests_running") == 0, "something runs on for nobody"
        now = round(time.monotonic() - self.began, 1)
        return Held(now, *_memory_and_files(self.pid), int(_number(page, "tasks")), self.seen.total())

    async def _post(self, path: str, **body: object) -> httpx.Response:
        return await self.client.post(self.url + path, json={"model": "scripted", **body})

    # What clients do

    async def whole(self) -> str:
        return f"whole {(await self._post('/responses', input='Hi')).status_code}"

    async def stream(self) -> str:
        reply = await self._post("/responses", input="Hi " * self.random.randint(1, 400), stream=True)
        return f"stream {reply.status_code} {'whole' if reply.text.endswith('[DONE]' + chr(10) * 2) else 'torn'}"

    async def chat(self) -> str:
        said = [{"role": "user", "content": "Hi"}]
        return f"chat {(await self._post('/chat/completions', messages=said, stream=True)).status_code}"

    async def background(self) -> str:
        made = (await self._post("/responses", input="Hi", background=True)).json()
        address = f"{self.url}/responses/{made['id']}"
        first = (await self.client.get(f"{address}?stream=true")).text.split("\n\n")
        number = self.random.randrange(len(first) - 2)
        rest = (await self.client.get(f"{address}?stream=true&starting_after={number}")).text.split("\n\n")
        await self.client.delete(address)
        return "background same" if rest == first[number + 1 :] else "background DIFFERENT"

    async def cancelled(self) -> str:
        made = (await self._post("/responses", input="Forever", background=True)).json()
        reply = await self.client.post(f"{self.url}/responses/{made['id']}/cancel")
        return f"cancel {reply.json()['status']}"

    async def talk(self) -> str:
        talk = (await self.client.post(f"{self.url}/conversations", json={})).json()["id"]
        for _ in range(3):
            reply = await self._post("/responses", input="Go on", conversation=talk)
        await self.client.delete(f"{self.url}/conversations/{talk}")
        return f"conversation {reply.status_code}"

    async def socket(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as line:
            for _ in range(3):
                await line.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
                while (kind := json.loads(await line.recv())["type"]) != "response.completed":
                    assert kind != "error"
        return "socket 200"

    # What nobody should do

    async def broken(self) -> str:
        reply = await self.client.post(
            f"{self.url}/responses", content=b"{", headers={"content-type": "application/json"}
        )
        return f"broken {reply.status_code}"

    async def leaver(self) -> str:
        body = {"model": "scripted", "input": "Forever", "stream": True}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            async for _ in reply.aiter_bytes():
                break
        return "left"

    async def bomb(self) -> str:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        reply = await self.client.post(
            f"{self.url}/responses", content=gzip.compress(bytes(40 * 2**20)), headers=headers
        )
        return f"bomb {reply.status_code}"

    async def half(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.url).port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nX: ")
        await asyncio.sleep(0.5)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return "half a header"

    async def binary(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as line:
            await line.send(b"\x00")
            return f"binary {json.loads(await line.recv())['status']}"


def _number(page: str, name: str) -> float:
    found = re.search(rf"^antiphon:{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    assert found, f"{name} is not on the page"
    return float(found[1])


def _memory_and_files(pid: int) -> tuple[float, int]:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found, "the server is gone"
    return round(int(found[1]) / 1024, 1), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def slope(held: list[Held]) -> float:
    """MiB of memory a minute, by least squares."""
    xs, ys = [one.at / 60 for one in held], [one.rss for one in held]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


def main() -> None:
    """Run it and print what was held."""
    parser = argparse.ArgumentParser(description="Mixed traffic with some abuse, for a while.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--warm", type=float, default=6, help="minutes before anything is read")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "soak.toml"
        script.write_text(SCRIPT, encoding="utf-8")
        words = [sys.executable, "-m", "antiphon.app.cli", "serve", "--engine", "scripted", "--script", str(script)]
        words += [
            "--port",
            "0",
            "--store",
            str(Path(folder) / "r.db"),
            "--log-format",
            "json",
            "--store-max-gib",
            "0.01",
        ]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
            assert server.stderr is not None
            while "base URL" not in (line := server.stderr.readline()):
                assert line, "the server did not start"
            url = line.split()[3]
            drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
            soak = Soak(url, server.pid, options.seed)
            held = asyncio.run(_within(soak, options.warm * 60, options.minutes * 60))
            server.terminate()
            code = server.wait(20)
            drain.kill()
    print("\n".join(f"{count:8d}  {what}" for what, count in sorted(soak.seen.items())))
    first, last = held[0], held[-1]
    print(
        f"memory {first.rss} -> {last.rss} MiB, slope {slope(held):+.3f} MiB a minute, "
        f"of the later half {slope(held[len(held) // 2 :]):+.3f}"
    )
    print(f"files {first.files} -> {last.files}, tasks {first.tasks} -> {last.tasks}, exit code {code}")


async def _within(soak: Soak, warm: float, seconds: float) -> list[Held]:
    return await soak.run(warm, seconds)


if __name__ == "__main__":
    main()
