"""A server whose engine is behind a server of engines, and helpers that read its replies."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.harmony.detection import detect
from tests.engine.remote.fake_server import FakeServer, Reply
from tests.engine.remote.remote_helpers import (
    EOS,
    build_engine,
    decode,
    encode,
    follow_grammars,
    load_tokenizer,
)
from tests.serving import RunningServer, serve


class FakeServerThread:
    """A fake server with an event loop of its own. Its methods may be called from any thread."""

    def __init__(self, default: Reply, probes: Callable[[dict[str, Any]], Reply | None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = FakeServer(encode, default, probes)
        self.start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)

    def kill(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.kill(), self._loop).result(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        """Ends the connections that were just accepted, too."""
        await self.server.kill()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)


@contextmanager
def serve_remote(
    default: Reply,
    probes: Callable[[dict[str, Any]], Reply | None] = follow_grammars,
    num_engines: int = 1,
    settings: dict[str, Any] | None = None,
    **attributes: Any,
) -> Iterator[tuple[RunningServer, list[FakeServerThread]]]:
    """Serves the embedded model's format over fake engines."""
    threads = [FakeServerThread(default, probes) for _ in range(num_engines)]
    for each in threads:
        each.server.decode = decode
        for name, value in attributes.items():
            setattr(each.server, name, value)
    engine = build_engine([each.server for each in threads])
    model_format = detect.load_format(MODEL_DIR, "hermes").format
    models = ModelRegistry([ServedModel(names=("tiny",), engine=engine, format=model_format, created=1_700_000_000)])
    try:
        with serve(models, **(settings or {})) as server:
            yield server, threads
    finally:
        for each in threads:
            each.close()


def tokens_of(text: str) -> list[int]:
    return [*load_tokenizer().tokenize_str(text), EOS]


def decode_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
