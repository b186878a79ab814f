"""A server like vLLM's that answers every job with the same tokens, one event per job and tick.

    python -m bench.canned_engine TOKENS LENGTH TICK_S

`TOKENS` is a JSON list of ids that repeat; the last one of a reply is the first id that the job stops at. All other
requests get the answers that a handshake needs.
"""

import argparse
import asyncio
import itertools
import json
from typing import Any

import msgspec
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class JobRequest(msgspec.Struct):
    """The fields of a job that the server reads."""

    stop_token_ids: list[int] = []
    max_tokens: int = 16
    logprobs: int | None = None


def encode_event(token: int, finish: str | None = None) -> bytes:
    """Returns an event of `/v1/completions` as a chunk of the body, with the fields that vLLM sends."""
    choice = {
        "index": 0,
        "text": " word",
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": [token],
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }
    event = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1_700_000_000}
    return _chunk(b"data: " + json.dumps({**event, "model": "scripted", "choices": [choice]}).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


USAGE = _chunk(b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}\n\n')
END = USAGE + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class CannedEngine:
    """Serves connections. `tokens` are generated in a cycle, `length` for each job, with the stop token.

    A tick writes an event to every connection with a job, as a step of a batching engine does.
    """

    def __init__(self, tokens: list[int], length: int, tick_s: float) -> None:
        self._events = [encode_event(token) for token in tokens]
        self._length, self._tick_s = length, tick_s
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run_ticks(self) -> None:
        """Wakes all jobs at every tick."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._tick_s)
            tick, self._tick = self._tick, loop.create_future()
            tick.set_result(None)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b":0")
                body = await reader.readexactly(int(length.partition(b":")[2]))
                await self._answer(path, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/completions":
            await self._generate(msgspec.json.decode(body, type=JobRequest), writer)
        elif path == "/v1/models":
            _write_json(writer, {"data": [{"id": "scripted", "owned_by": "vllm", "max_model_len": 1 << 20}]})
        elif path == "/tokenize":
            _write_json(writer, {"tokens": []})
        else:
            _write_json(writer, {"version": "0.32.0"})

    async def _generate(self, job: JobRequest, writer: asyncio.StreamWriter) -> None:
        if job.logprobs is not None:
            _write_json(writer, {"error": {"message": "no log-probabilities"}}, 400)
            return
        writer.write(HEAD)
        count = min(job.max_tokens, self._length)
        for event in itertools.islice(itertools.cycle(self._events), count - 1):
            writer.write(event)
            await asyncio.shield(self._tick)
        is_stop = count == self._length
        writer.write(encode_event(job.stop_token_ids[0] if is_stop else 0, "stop" if is_stop else "length") + END)
        await writer.drain()


def _write_json(writer: asyncio.StreamWriter, body: dict[str, Any], status: int = 200) -> None:
    data = json.dumps(body).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data))


async def serve_tokens(tokens: list[int], length: int, tick_s: float) -> None:
    """Serves on a free port and prints it."""
    engine = CannedEngine(tokens, length, tick_s)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await engine.run_ticks()


def main() -> None:
    """Serves what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=json.loads)
    parser.add_argument("length", type=int)
    parser.add_argument("tick_s", type=float)
    uvloop.run(serve_tokens(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
