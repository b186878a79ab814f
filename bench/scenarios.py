"""Scenarios beyond a uniform load: a long prompt among running streams, the next turn of an agent, a growing context."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from bench.load_client import Stream
from bench.servers import PeerServer, make_prompt
from bench.stats import gaps_between, median

Record = dict[str, Any]
RUNNING_STREAMS = 8
RUNNING_MAX_TOKENS = 1_200
LONG_PROMPT_TOKENS = 6_000
WARMUP_PIECES = 24
"""Pieces of text that every running stream must have produced before the long prompt is sent."""
SKIPPED_READS = 4
"""Reads at the start of a running stream that are not measured."""
CONTEXT_TOKENS = (128, 512, 2_048, 8_192)
HISTORY_TURNS = 10
TIMEOUT_S = 900.0


class BenchError(Exception):
    """Raised for a reply that cannot be measured."""


def check_stream(stream: Stream) -> Stream:
    """Returns the stream. Raises `BenchError` if its request failed."""
    if stream.error:
        raise BenchError(stream.error)
    return stream


async def run_long_prompt(server: PeerServer, seed: int) -> Record:
    """Sends a long prompt while other streams run. Measures the ITL of those before it and until its first token."""
    api = server.peer.api
    streams = [Stream(api, 0.0) for _ in range(RUNNING_STREAMS)]
    bodies = [
        server.build_body(make_prompt(f"running {seed} {index}", 128), RUNNING_MAX_TOKENS)
        for index in range(RUNNING_STREAMS)
    ]
    tasks = [asyncio.create_task(server.send(body, stream)) for body, stream in zip(bodies, streams, strict=True)]
    try:
        while any(len(stream.arrivals) < WARMUP_PIECES for stream in streams):
            await asyncio.sleep(0.01)
            if any(task.done() for task in tasks):
                raise BenchError(f"a running stream ended early: {[stream.error for stream in streams]}")
        counts = [len(stream.arrivals) for stream in streams]
        body = server.build_body(make_prompt(f"long {seed}", LONG_PROMPT_TOKENS), 4)
        long_stream = check_stream(await server.send(body))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first_token_at = long_stream.started_at + long_stream.ttft_s
    before = [
        gap
        for stream, count in zip(streams, counts, strict=True)
        for gap in gaps_between(stream.arrivals[SKIPPED_READS:count])
    ]
    during = [
        gap
        for stream, count in zip(streams, counts, strict=True)
        for gap in gaps_between([arrival for arrival in stream.arrivals[count - 1 :] if arrival[0] <= first_token_at])
    ]
    return {
        "server": server.peer.name,
        "ITL before, ms": median(before) * 1e3,
        "ITL during, ms": median(during) * 1e3,
        "ratio": median(during) / median(before),
        "max ITL during, ms": max(during, default=0.0) * 1e3,
        "TTFT of the long prompt, s": long_stream.ttft_s,
    }


async def run_next_turn(server: PeerServer, seed: int) -> Record:
    """Sends a history of `HISTORY_TURNS` turns, then again with the reply and a new message: cached, and not cached."""
    items = build_history(seed)
    previous = check_stream(await server.send(_agent_body(server, f"known {seed}", items, 48)))
    output = previous.last_event()["response"]["output"]
    resent = [*items, *output, {"role": "user", "content": make_prompt(f"next {seed}", 40)}]
    cached = check_stream(await server.send(_agent_body(server, f"known {seed}", resent, 16)))
    # Other instructions change the first tokens, so no part of this request can be in the prefix cache.
    uncached = check_stream(await server.send(_agent_body(server, f"other {seed}", resent, 16)))
    return {
        "server": server.peer.name,
        "input tokens": float(cached.prompt_tokens),
        "TTFT uncached, ms": uncached.ttft_s * 1e3,
        "TTFT cached, ms": cached.ttft_s * 1e3,
        "speedup": uncached.ttft_s / cached.ttft_s,
        "cached share of the resent tokens": cached.cached_tokens / (previous.prompt_tokens + previous.output_tokens),
        "cached tokens of the uncached request": float(uncached.cached_tokens),
    }


def _agent_body(server: PeerServer, instructions_seed: str, items: list[Record], max_tokens: int) -> Record:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tool = {"type": "function", "name": "run", "description": "Runs a command.", "parameters": parameters}
    return {
        "model": server.model,
        "stream": True,
        "temperature": 1.0,
        "max_output_tokens": max_tokens,
        "instructions": make_prompt(instructions_seed, 40),
        "tools": [tool],
        "input": items,
    }


def build_history(seed: int) -> list[Record]:
    """Returns the input items of `HISTORY_TURNS` turns of an agent and a last user message, about 4 000 tokens.

    In each turn the agent reasons, calls a tool, reads its output and reports.
    """
    items: list[Record] = []
    for index in range(HISTORY_TURNS):
        turn_seed = f"{seed} {index}"
        items += [
            {"role": "user", "content": make_prompt(f"user {turn_seed}", 46)},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": make_prompt(f"think {turn_seed}", 90)}],
            },
            {
                "type": "function_call",
                "call_id": f"call_{index}",
                "name": "run",
                "arguments": json.dumps({"command": make_prompt(f"call {turn_seed}", 40).strip()}),
            },
            {
                "type": "function_call_output",
                "call_id": f"call_{index}",
                "output": make_prompt(f"output {turn_seed}", 150),
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": make_prompt(f"report {turn_seed}", 60)}],
            },
        ]
    return [*items, {"role": "user", "content": make_prompt(f"last {seed}", 46)}]


async def run_growing_context(server: PeerServer, seed: int) -> list[Record]:
    """Sends one request per context length. Measures the time per prompt token and the ITL of each."""
    records = []
    for tokens in CONTEXT_TOKENS:
        stream = check_stream(await server.send(server.build_body(make_prompt(f"growth {seed} {tokens}", tokens), 32)))
        records.append(
            {
                "server": server.peer.name,
                "context": float(stream.prompt_tokens),
                "TTFT, ms": stream.ttft_s * 1e3,
                "ms per prompt token": stream.ttft_s * 1e3 / stream.prompt_tokens,
                "ITL, ms": median(gaps_between(stream.arrivals)) * 1e3,
            }
        )
    return records


async def _repeat(
    server: PeerServer, count: int, run_once: Callable[[PeerServer, int], Awaitable[Record]]
) -> list[Record]:
    # Seeds are never reused, so that the server's prefix cache holds no prompt of an earlier run.
    first_seed = random.SystemRandom().randrange(10**9)
    return [await asyncio.wait_for(run_once(server, first_seed + index), TIMEOUT_S) for index in range(count)]


async def run_scenario(name: str, server: PeerServer, repeat: int) -> list[Record]:
    """Returns the records of a scenario that runs `repeat` times (`growth`: once). Raises `BenchError`."""
    if name == "growth":
        return await asyncio.wait_for(run_growing_context(server, 0), TIMEOUT_S)
    return await _repeat(server, repeat, {"long": run_long_prompt, "next": run_next_turn}[name])


SCENARIO_TITLES = {
    "long": f"A prompt of {LONG_PROMPT_TOKENS} tokens among {RUNNING_STREAMS} running streams",
    "next": f"The next turn after a history of {HISTORY_TURNS} turns with reasoning and tool calls",
    "growth": "One stream with a growing context",
}
