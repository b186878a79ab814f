"""Threads that decode the first request bodies of a server at the same time do not crash it."""

import subprocess
import sys

import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

PROGRAM = f"""
import asyncio, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from antiphon.app.context import create_context
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.messages.body import MessagesBody
from antiphon.app.requests.responses.body import ResponsesBody
from antiphon.app.store.sqlite.store import MemoryStore

TOOL = {{"type": "function", "name": "f", "parameters": {{}}}}
MESSAGES = [{{"role": "user", "content": "Hi"}}]
BODIES = [
    (ResponsesBody, {{"model": "m", "input": "Hi", "tools": [TOOL], "reasoning": {{"effort": "low"}}, "stream": True}}),
    (ChatBody, {{"model": "m", "messages": MESSAGES, "tools": [{{"type": "function", "function": {{"name": "f"}}}}]}}),
    (MessagesBody, {{"model": "m", "messages": MESSAGES, "max_tokens": 1, "tools": [{{"name": "f", "input_schema": {{}}}}]}}),
]
barrier = threading.Barrier(4)

async def start():
    create_context(Settings(), ModelRegistry([]), store=MemoryStore())

def decode_all():
    for kind, body in BODIES:
        barrier.wait()
        decode_body(kind, body)

asyncio.run(start())
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=decode_all) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("decoded", flush=True)
import os
os._exit(0)
"""
NUM_RUNS = 6
"""Without the preparation, most of these runs end with SIGSEGV."""


def test_first_bodies_are_decoded_in_several_threads_at_once() -> None:
    for _ in range(NUM_RUNS):
        command = [sys.executable, "-c", PROGRAM]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)
        assert (result.returncode, result.stdout) == (0, "decoded\n"), result.stderr
