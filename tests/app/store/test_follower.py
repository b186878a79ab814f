"""The thread that follows other servers' responses: its end while the database does not answer."""

import threading
from typing import Any

import pytest

from antiphon.app.store.base import StoreError
from antiphon.app.store.postgres import follower
from antiphon.app.store.postgres.follower import Follower


def test_sockets_are_closed_by_a_thread_that_outlives_the_wait_of_close(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def connect(address: Any) -> Any:
        answers.wait(10)
        raise StoreError("the database does not answer")

    monkeypatch.setattr(follower, "PostgresConnection", connect)
    monkeypatch.setattr(follower, "MAX_CLOSE_WAIT_S", 0.01)
    address: Any = type("Address", (), {"describe_error": staticmethod(str)})()
    listener: Any = None
    following = Follower(address, listener)
    following.close()
    assert following._thread.is_alive()
    answers.set()
    following._thread.join(10)
    assert following._wake_reader.fileno() == following._wake_writer.fileno() == -1
