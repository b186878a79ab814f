"""Drives a server with simultaneous streams and says what was seen.

The client shares its cores with the server, so it does the least: it reads bytes, counts the lines that bring text
and looks for the usage once, at the end. A token's time is that of the read that completed its line.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.bench.figures import gaps_of, median, quantile

Api = Literal["responses", "chat"]
TEXT = {
    "responses": re.compile(rb'^data:.*?_text\.delta"', re.MULTILINE),
    "chat": re.compile(rb'^data:.*?"(?:reasoning_content|reasoning|content)": ?"[^"]', re.MULTILINE),
}
USED = re.compile(rb'"(?:output_tokens|completion_tokens)": ?(\d+)')
GIVEN = re.compile(rb'"(?:input_tokens|prompt_tokens)": ?(\d+)')
CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
BROKEN = re.compile(rb'^data: ?\{"(?:type": ?"(?:error|response\.failed)"|error":).*', re.MULTILINE)
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}


@dataclass
class Stream:
    """What one stream brought. Times are seconds of `time.perf_counter`."""

    api: Api
    begun: float
    status: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When text came, and in how many pieces."""
    kept: bytes = b""
    """The whole reply; a benchmark's replies are small."""
    ended: float = 0.0
    _rest: bytes = b""

    def feed(self, data: bytes, at: float) -> None:
        """Take what one read brought."""
        self.kept += data
        whole, line, self._rest = (self._rest + data).rpartition(b"\n")
        if line and (count := len(TEXT[self.api].findall(whole + line))):
            self.arrivals.append((at, count))

    @property
    def error(self) -> str | None:
        """What went wrong, in one line."""
        if self.status != 200:
            return f"HTTP {self.status}: {self.kept[-300:].decode(errors='replace')}"
        broken = BROKEN.search(self.kept)
        if broken:
            return broken[0][:300].decode(errors="replace")
        return None if self.arrivals else "no text came"

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self.arrivals[0][0] - self.begun

    @property
    def tokens(self) -> int:
        """As the usage tells; the pieces of text where it does not."""
        return _last(USED, self.kept) or sum(count for _, count in self.arrivals)

    @property
    def given(self) -> int:
        """Tokens of the prompt, as the usage tells."""
        return _last(GIVEN, self.kept) or 0

    @property
    def cached(self) -> int:
        """Those of them that the server says it did not compute again."""
        return _last(CACHED, self.kept) or 0

    def last_event(self) -> dict[str, Any]:
        """The data of the last event that has any."""
        lines = [line[5:] for line in self.kept.splitlines() if line.startswith(b"data:")]
        found: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.strip() != b"[DONE]"))
        return found


def _last(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None


def body(api: Api, model: str, prompt: Any, tokens: int, **more: Any) -> dict[str, Any]:
    """A request for a stream of at most `tokens` tokens, drawn at temperature 1."""
    common = {"model": model, "stream": True, "temperature": 1.0, **more}
    if api == "responses":
        return common | {"input": prompt, "max_output_tokens": tokens}
    messages = [{"role": "user", "content": prompt}]
    return common | {"messages": messages, "max_tokens": tokens, "stream_options": {"include_usage": True}}


async def ask(port: int, api: Api, content: dict[str, Any], into: Stream | None = None) -> Stream:
    """Send one request and read its stream to the end. `into` can be watched meanwhile."""
    data = json.dumps(content).encode()
    head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    stream = into or Stream(api, 0.0)
    stream.begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        status = await reader.readline()
        stream.status = int(status.split()[1])
        while chunk := await reader.read(65_536):
            stream.feed(chunk, time.perf_counter())
    finally:
        writer.close()
        stream.ended = time.perf_counter()
    return stream


@dataclass(frozen=True)
class Sample:
    """What one server did under one load. Times are seconds."""

    streams: int
    tokens: int
    wall: float
    first: float
    """Median time to the first text."""
    gap: float
    """Median time between two pieces of text of one stream."""
    gap99: float
    rate: float
    """Output tokens per second of wall time, from the first request to the last byte."""
    given: int
    """Median tokens of a prompt."""
    errors: tuple[str, ...] = ()


def sample(streams: list[Stream]) -> Sample:
    """The figures of streams that ran together."""
    good = [stream for stream in streams if stream.error is None]
    errors = tuple(stream.error for stream in streams if stream.error)
    wall = max(stream.ended for stream in streams) - min(stream.begun for stream in streams)
    gaps = [gap for stream in good for gap in gaps_of(stream.arrivals)]
    tokens = sum(stream.tokens for stream in good)
    return Sample(
        streams=len(streams),
        tokens=tokens,
        wall=wall,
        first=median([stream.first for stream in good]),
        gap=median(gaps),
        gap99=quantile(gaps, 0.99),
        rate=tokens / wall,
        given=round(median([stream.given for stream in good]) if good else 0),
        errors=errors,
    )


async def load(port: int, api: Api, contents: list[dict[str, Any]], limit: float = 600.0) -> Sample:
    """Send these requests at once and read all of them; TimeoutError after `limit` seconds."""
    async with asyncio.timeout(limit):
        return sample(list(await asyncio.gather(*(ask(port, api, content) for content in contents))))
