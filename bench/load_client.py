"""The benchmark's client: sends concurrent streaming requests to a server and measures the replies.

The client shares its cores with the server, so it does little work per read: it reads bytes and counts the lines that
carry text. It searches for the usage once, at the end. The arrival time of a piece of text is the time of the read that
completed its line.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.stats import gaps_between, median, quantile

Api = Literal["responses", "chat"]
TEXT_LINE = {
    "responses": re.compile(rb'^data:.*?_text\.delta"', re.MULTILINE),
    "chat": re.compile(rb'^data:.*?"(?:reasoning_content|reasoning|content)": ?"[^"]', re.MULTILINE),
}
OUTPUT_TOKENS = re.compile(rb'"(?:output_tokens|completion_tokens)": ?(\d+)')
PROMPT_TOKENS = re.compile(rb'"(?:input_tokens|prompt_tokens)": ?(\d+)')
CACHED_TOKENS = re.compile(rb'"cached_tokens": ?(\d+)')
ERROR_LINE = re.compile(rb'^data: ?\{"(?:type": ?"(?:error|response\.failed)"|error":).*', re.MULTILINE)
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}


@dataclass
class Stream:
    """The reply to one streaming request. Times are seconds of `time.perf_counter`."""

    api: Api
    started_at: float
    status: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Time and number of pieces of each read that brought text."""
    reply: bytes = b""
    """The complete body; a benchmark's replies are small."""
    ended_at: float = 0.0
    _partial_line: bytes = b""

    def feed(self, data: bytes, at: float) -> None:
        """Adds the data of one read."""
        self.reply += data
        lines, newline, self._partial_line = (self._partial_line + data).rpartition(b"\n")
        if newline and (count := len(TEXT_LINE[self.api].findall(lines + newline))):
            self.arrivals.append((at, count))

    @property
    def error(self) -> str | None:
        """Error of the request in one line, or None."""
        if self.status != 200:
            return f"HTTP {self.status}: {self.reply[-300:].decode(errors='replace')}"
        error_line = ERROR_LINE.search(self.reply)
        if error_line:
            return error_line[0][:300].decode(errors="replace")
        return None if self.arrivals else "the stream contains no text"

    @property
    def ttft_s(self) -> float:
        """Time to first token: seconds from the request to the first text."""
        return self.arrivals[0][0] - self.started_at

    @property
    def output_tokens(self) -> int:
        """Number of output tokens by the usage; without a usage, the number of pieces of text."""
        return _last_match(OUTPUT_TOKENS, self.reply) or sum(count for _, count in self.arrivals)

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens by the usage."""
        return _last_match(PROMPT_TOKENS, self.reply) or 0

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that the server took from its cache, by the usage."""
        return _last_match(CACHED_TOKENS, self.reply) or 0

    def last_event(self) -> dict[str, Any]:
        """Returns the data of the last event."""
        lines = [line[5:] for line in self.reply.splitlines() if line.startswith(b"data:")]
        event: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.strip() != b"[DONE]"))
        return event


def _last_match(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    matches = pattern.findall(text)
    return int(matches[-1]) if matches else None


def request_body(api: Api, model: str, prompt: Any, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Returns the body of a streaming request at temperature 1."""
    common = {"model": model, "stream": True, "temperature": 1.0, **fields}
    if api == "responses":
        return common | {"input": prompt, "max_output_tokens": max_tokens}
    messages = [{"role": "user", "content": prompt}]
    return common | {"messages": messages, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}


async def send_request(port: int, api: Api, body: dict[str, Any], stream: Stream | None = None) -> Stream:
    """Sends one request and reads its reply to the end. A caller can pass `stream` to observe it before the end."""
    data = json.dumps(body).encode()
    head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    stream = stream or Stream(api, 0.0)
    stream.started_at = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        status_line = await reader.readline()
        stream.status = int(status_line.split()[1])
        while chunk := await reader.read(65_536):
            stream.feed(chunk, time.perf_counter())
    finally:
        writer.close()
        stream.ended_at = time.perf_counter()
    return stream


@dataclass(frozen=True)
class Sample:
    """Measurements of one server under one load. The field names are keys of the JSON record."""

    streams: int
    output_tokens: int
    """Output tokens of all streams."""
    duration_s: float
    """Time from the first request to the last byte."""
    ttft_s: float
    """Median time to first token."""
    itl_s: float
    """Median inter-token latency: time between two pieces of text of one stream."""
    itl_p99_s: float
    """99th percentile of the inter-token latency."""
    throughput: float
    """Output tokens per second of `duration_s`."""
    prompt_tokens: int
    """Median number of prompt tokens."""
    errors: tuple[str, ...] = ()


def summarize(streams: list[Stream]) -> Sample:
    """Returns the measurements of streams that ran concurrently."""
    completed = [stream for stream in streams if stream.error is None]
    errors = tuple(stream.error for stream in streams if stream.error)
    duration_s = max(stream.ended_at for stream in streams) - min(stream.started_at for stream in streams)
    gaps = [gap for stream in completed for gap in gaps_between(stream.arrivals)]
    output_tokens = sum(stream.output_tokens for stream in completed)
    return Sample(
        streams=len(streams),
        output_tokens=output_tokens,
        duration_s=duration_s,
        ttft_s=median([stream.ttft_s for stream in completed]),
        itl_s=median(gaps),
        itl_p99_s=quantile(gaps, 0.99),
        throughput=output_tokens / duration_s,
        prompt_tokens=round(median([stream.prompt_tokens for stream in completed]) if completed else 0),
        errors=errors,
    )


async def run_load(port: int, api: Api, bodies: list[dict[str, Any]], timeout_s: float = 600.0) -> Sample:
    """Sends the requests concurrently and reads all replies. Raises TimeoutError after `timeout_s` seconds."""
    async with asyncio.timeout(timeout_s):
        return summarize(list(await asyncio.gather(*(send_request(port, api, body) for body in bodies))))
