"""Fixtures for every test: a real server on a real socket, over a scripted engine."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from tests.serving import RunningServer, serve
from tests.syntax import ROOT

os.environ["PYTHONPATH"] = str(ROOT)
"""Engine processes that tests start load their core from `tests.engine.fake_core`."""

Serve = Callable[..., RunningServer]


@pytest.fixture
def server() -> Iterator[Serve]:
    """`server(replies, **settings)` starts one; all are stopped when the test ends."""
    with ExitStack() as stack:

        def start(*args: Any, **settings: Any) -> RunningServer:
            opened: AbstractContextManager[RunningServer] = serve(*args, **settings)
            return stack.enter_context(opened)

        yield start
