"""A thousand requests at once: how soon the refused ones hear of it, and how soon health answers meanwhile.

    python -m tests.bench.flood

The connections are open before; then every request is sent as fast as one process can. The server is a process of its
own whose engine takes 64 turns and lets 64 wait. Milliseconds, from the last byte sent to the whole answer.
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import uvloop

from tests.bench import loopback

BODY = json.dumps({"model": "scripted", "input": "say 200 by 1.", "stream": False}).encode()
ASK = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Line(asyncio.Protocol):
    """One connection that sends one request at a time."""

    def __init__(self) -> None:
        self._said = b""
        self._answer: asyncio.Future[float] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, _, body = self._said.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
        if self._answer and not self._answer.done() and len(body) == length:
            self._answer.set_result(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("closed without an answer"))

    async def ask(self, request: bytes) -> tuple[int, float]:
        """The status, and the milliseconds it took."""
        self._said = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        begun = time.perf_counter()
        took = (await self._answer - begun) * 1e3
        return int(self._said[9:12]), took


async def flood(port: int, count: int, rate: float) -> dict[str, list[float]]:
    """Milliseconds by what was answered; `rate` requests a second, 0: all at once."""
    loop = asyncio.get_running_loop()
    lines = [(await loop.create_connection(Line, "127.0.0.1", port))[1] for _ in range(count + 1)]
    found: dict[str, list[float]] = {"health": []}

    async def probe() -> None:
        while True:
            found["health"].append((await lines[-1].ask(HEALTH))[1])
            await asyncio.sleep(0.005)

    probing = asyncio.create_task(probe())
    await asyncio.sleep(0.1)
    asked = []
    for number, line in enumerate(lines[:-1]):
        asked.append(asyncio.create_task(line.ask(ASK % (len(BODY), BODY))))
        if rate and number % 10 == 9:
            await asyncio.sleep(10 / rate)
    for status, took in await asyncio.gather(*asked):
        found.setdefault(str(status), []).append(took)
    probing.cancel()
    return found


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--count", type=int, default=1000)
    words.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: all at once")
    asked = words.parse_args()
    with loopback.server([(200, 1)], slots=64, queue=64) as (_, port):
        uvloop.run(flood(port, 1, 0))
        found = uvloop.run(flood(port, asked.count, asked.rate))
    print("| answer | count | median ms | 99 % | worst |\n|---|---|---|---|---|")
    for name, took in sorted(found.items()):
        cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
        print(f"| {name} | {len(took)} | {statistics.median(took):.1f} | {cuts[98]:.1f} | {max(took):.1f} |")


if __name__ == "__main__":
    main()
