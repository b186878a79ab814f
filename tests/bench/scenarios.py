"""What a mean over equal requests does not show: a long prompt among running streams, a next turn, a growing context."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.figures import gaps_of, median
from tests.bench.load_client import Stream
from tests.bench.servers import Server, prompt

Record = dict[str, Any]
RUNNING = 8
LONG = 6_000
STEADY = 24
"""Pieces of text that every running stream must have brought before the long prompt is sent."""
CONTEXTS = (128, 512, 2_048, 8_192)
TURNS = 10
WAIT = 900.0


class BenchError(Exception):
    """A reply that cannot be measured."""


def checked(stream: Stream) -> Stream:
    """The stream, if nothing went wrong in it. Raises :class:`BenchError`."""
    if stream.error:
        raise BenchError(stream.error)
    return stream


async def long_prompt(server: Server, turn: int) -> Record:
    """A prompt of `LONG` tokens arrives among `RUNNING` streams: the median gap between their tokens before and during."""
    api = server.peer.api
    streams = [Stream(api, 0.0) for _ in range(RUNNING)]
    bodies = [server.body(prompt(f"running {turn} {place}", 128), 1_200) for place in range(RUNNING)]
    tasks = [asyncio.create_task(server.ask(each, into)) for each, into in zip(bodies, streams, strict=True)]
    try:
        while any(len(stream.arrivals) < STEADY for stream in streams):
            await asyncio.sleep(0.01)
            if any(task.done() for task in tasks):
                raise BenchError(f"a running stream ended early: {[stream.error for stream in streams]}")
        counts = [len(stream.arrivals) for stream in streams]
        arrival = checked(await server.ask(server.body(prompt(f"long {turn}", LONG), 4)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    until = arrival.begun + arrival.first
    before = [gap for stream, n in zip(streams, counts, strict=True) for gap in gaps_of(stream.arrivals[4:n])]
    during = [
        gap
        for stream, n in zip(streams, counts, strict=True)
        for gap in gaps_of([arrived for arrived in stream.arrivals[n - 1 :] if arrived[0] <= until])
    ]
    return {
        "server": server.peer.name,
        "median gap before, ms": median(before) * 1e3,
        "during, ms": median(during) * 1e3,
        "ratio": median(during) / median(before),
        "longest during, ms": max(during, default=0.0) * 1e3,
        "first token of the long prompt, s": arrival.first,
    }


async def next_turn(server: Server, turn: int) -> Record:
    """A history of `TURNS` turns and what the server itself answered to it come back: with the cache, and without."""
    items = history(turn)
    before = checked(await server.ask(_agent(server, f"known {turn}", items, 48)))
    answer = before.last_event()["response"]["output"]
    resent = [*items, *answer, {"role": "user", "content": prompt(f"next {turn}", 40)}]
    warm = checked(await server.ask(_agent(server, f"known {turn}", resent, 16)))
    # Other instructions change the first tokens, so nothing of this one can be known.
    cold = checked(await server.ask(_agent(server, f"other {turn}", resent, 16)))
    return {
        "server": server.peer.name,
        "input tokens": float(warm.given),
        "first token without the cache, ms": cold.first * 1e3,
        "with it, ms": warm.first * 1e3,
        "times sooner": cold.first / warm.first,
        "cached share of the resent tokens": warm.cached / (before.given + before.tokens),
        "cached of the other, tokens": float(cold.cached),
    }


def _agent(server: Server, seed: str, items: list[Record], tokens: int) -> Record:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tool = {"type": "function", "name": "run", "description": "Runs a command.", "parameters": parameters}
    return {
        "model": server.model,
        "stream": True,
        "temperature": 1.0,
        "max_output_tokens": tokens,
        "instructions": prompt(seed, 40),
        "tools": [tool],
        "input": items,
    }


def history(turn: int) -> list[Record]:
    """Ten turns of an agent, about 4 000 tokens: each thinks, calls a tool, reads its output and reports."""
    items: list[Record] = []
    for place in range(TURNS):
        seed = f"{turn} {place}"
        items += [
            {"role": "user", "content": prompt(f"user {seed}", 46)},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": prompt(f"think {seed}", 90)}],
            },
            {
                "type": "function_call",
                "call_id": f"call_{place}",
                "name": "run",
                "arguments": json.dumps({"command": prompt(f"call {seed}", 40).strip()}),
            },
            {"type": "function_call_output", "call_id": f"call_{place}", "output": prompt(f"output {seed}", 150)},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": prompt(f"report {seed}", 60)}],
            },
        ]
    return [*items, {"role": "user", "content": prompt(f"last {turn}", 46)}]


async def growth(server: Server, turn: int) -> list[Record]:
    """One stream at growing contexts: what a token of the prompt costs, and what a token of the answer."""
    records = []
    for context in CONTEXTS:
        stream = checked(await server.ask(server.body(prompt(f"growth {turn} {context}", context), 32)))
        records.append(
            {
                "server": server.peer.name,
                "context": float(stream.given),
                "first token, ms": stream.first * 1e3,
                "ms per token of the prompt": stream.first * 1e3 / stream.given,
                "gap, ms": median(gaps_of(stream.arrivals)) * 1e3,
            }
        )
    return records


async def _each(server: Server, count: int, play: Callable[[Server, int], Awaitable[Record]]) -> list[Record]:
    # A number of a run must never have been seen by the server's cache.
    start = random.SystemRandom().randrange(10**9)
    return [await asyncio.wait_for(play(server, start + turn), WAIT) for turn in range(count)]


async def play(name: str, server: Server, count: int) -> list[Record]:
    """The records of a scenario, `count` times over. Raises :class:`BenchError`."""
    if name == "growth":
        return await asyncio.wait_for(growth(server, 0), WAIT)
    return await _each(server, count, {"long": long_prompt, "next": next_turn}[name])


TITLES = {
    "long": f"A prompt of {LONG} tokens among {RUNNING} running streams",
    "next": f"The next turn after a history of {TURNS} turns with reasoning and tool calls",
    "growth": "One stream, a growing context",
}
