"""Steering on the embedded model: a successor reads its parent's prompt and output from the prefix cache.

The template of the model leaves out the reasoning of earlier turns, so the output after it is computed again.
"""

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from antiphon.engine.cache.base import CAPACITY_STEP_TOKENS
from antiphon.engine.protocol import Chunk, Job, OnChunk
from tests.clients.lane_client import LaneClient, open_lanes
from tests.clients.steered_lanes import steer, take
from tests.codex.embedded_registry import KEEPING_TEMPLATE, needs_weights, serve_embedded
from tests.invariants import check_stream
from tests.progress import wait_with_progress
from tests.serving import RunningServer

pytestmark = needs_weights


class ChunkGate:
    """Holds the chunks of the next job after a number of those with tokens, until a response is steered."""

    def __init__(self, server: RunningServer) -> None:
        self._generate, server.engine.generate = server.engine.generate, self.generate
        self._manager = server.context.turn_manager
        self._steer_turn = self._manager.steer_turn
        setattr(self._manager, "steer_turn", self.steer_turn)  # noqa: B010 - a method
        self.num_passed: int | None = None
        """Number of chunks that pass; None holds nothing."""
        self.is_holding = threading.Event()
        self._steered = asyncio.Event()

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Generates as the engine does, but holds chunks."""
        num_passed, self.num_passed = self.num_passed, None
        held: list[Chunk] = []

        def pass_held() -> None:
            while held:
                on_chunk(held.pop(0))

        def hold_chunk(chunk: Chunk) -> None:
            nonlocal num_passed
            held.append(chunk)
            if num_passed is None or self._steered.is_set() or not (chunk.tokens or chunk.finish):
                pass_held()
            elif num_passed > 0:
                num_passed -= 1
                pass_held()
            else:
                self.is_holding.set()

        await self._generate(job, hold_chunk)
        if held:
            await self._steered.wait()
            pass_held()

    def steer_turn(self, response_id: str) -> None:
        """Steers, then lets everything pass."""
        self._steer_turn(response_id)
        self._steered.set()


SERVERS = {"own": serve_embedded, "keeping": partial(serve_embedded, template=KEEPING_TEMPLATE)}
"""A server of the embedded model with its own template, and with one that keeps reasoning."""


def steer_once(
    client: LaneClient, gate: ChunkGate, words: str, num_passed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Steers a response that is held after some chunks. Returns it and its successor.

    `words` begin a conversation that no other test has, so that nothing of it is in the cache.
    """
    conversation = [("user", f"{words} " * 12), ("assistant", "Yes."), ("user", "say hello")]
    items = [{"role": role, "content": text} for role, text in conversation]
    gate.num_passed = num_passed
    client.create("a", items, model="antiphon", temperature=0, store=True)
    while not client.events["a"]:
        client.receive()
    wait_with_progress(gate.is_holding.is_set, "the engine generated nothing")
    steer(client, client.events["a"][0]["response"]["id"], "run the command echo hello")
    take(client, "accepted")
    parent, successor = client.finish("a"), client.finish("a", 2)
    for stream in client.streams("a"):
        check_stream(stream)
    assert successor["previous_response_id"] == parent["id"]
    return parent, successor


def check_reuse(parent: dict[str, Any], successor: dict[str, Any], num_kept: int) -> None:
    """Checks that `num_kept` tokens are not computed again, apart from those that do not fill a step of the cache."""
    cached, usage = parent["usage"]["input_tokens_details"]["cached_tokens"], successor["usage"]
    assert cached == 0, "nothing of the conversation was known before"
    assert num_kept - CAPACITY_STEP_TOKENS <= usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


def test_successor_of_a_silent_response_reuses_its_prompt(server: RunningServer) -> None:
    with open_lanes(server) as client:
        parent, successor = steer_once(client, ChunkGate(server), "One short sentence.", 0)
    assert (parent["incomplete_details"], parent["output"]) == ({"reason": "steered"}, [])
    check_reuse(parent, successor, parent["usage"]["input_tokens"])


def test_successor_of_a_message_reuses_what_the_template_keeps(
    server: RunningServer, request: pytest.FixtureRequest
) -> None:
    with open_lanes(server) as client:
        parent, successor = steer_once(client, ChunkGate(server), "Another one with words.", 12)
        streamed = [event["type"] for event in client.streams("a")[0]]
    assert "response.output_text.delta" in streamed
    assert parent["status"] == "completed" and parent["output"][-1]["type"] == "message"
    is_kept = request.node.callspec.params["server"] == "keeping"
    check_reuse(parent, successor, parent["usage"]["total_tokens" if is_kept else "input_tokens"])
