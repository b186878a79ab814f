"""Figures of a server, which it leaves in its store with each heartbeat for those who look at another server."""

import os
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import msgspec
from msgspec import Struct, structs

from antiphon.app.inspection.process_memory import read_resident_bytes
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ServedModel

MAX_FIGURES_BYTES = 1024
"""Size of the figures as JSON. Names of models are left out above it."""


class ServerFigures(Struct, frozen=True, kw_only=True):
    """Figures of one server. They hold no content of any turn, and no name of an owner."""

    version: str = ""
    host: str = ""
    """Address to which the server is bound."""
    port: int = 0
    pid: int = 0
    inspect: str = ""
    """Mode of recording."""
    started_at: float = 0.0
    """Seconds since 1970."""
    serving: bool = True
    """False before the models are ready, and from the begin of a shutdown on."""
    models: tuple[str, ...] = ()
    turns: int = 0
    """Turns in progress."""
    running: int = 0
    """Jobs in the engines."""
    waiting: int = 0
    max_num_seqs: int = 0
    prompt_tokens: int = 0
    """This and what follows are totals since the start."""
    generated_tokens: int = 0
    finished_jobs: int = 0
    failed_jobs: int = 0
    resident_bytes: int = 0
    """Memory of the server and of its engine processes."""


_SUMMED = ("running", "waiting", "max_num_seqs", "prompt_tokens", "generated_tokens", "finished_jobs", "failed_jobs")
"""Figures that are sums over the engines."""
REPORT_INTERVAL_S = 1.0
"""Time for which figures are reported again. A store in memory asks for them four times a second."""
_decoder = msgspec.json.Decoder(ServerFigures)


def encode_figures(
    settings: Settings, models: Sequence[ServedModel], num_turns: int, started_at: float, *, serving: bool = True
) -> str:
    """Returns the figures of this server as JSON."""
    stats = [model.engine.stats() for model in models]
    figures = ServerFigures(
        version=version("antiphon"),
        host=settings.host[:64],
        port=settings.port,
        pid=os.getpid(),
        inspect=settings.inspect_mode,
        started_at=started_at,
        serving=serving,
        models=tuple(model.names[0] for model in models),
        turns=num_turns,
        resident_bytes=sum(each.resident_bytes for each in read_resident_bytes()),
        **{name: sum(getattr(each, name) for each in stats) for name in _SUMMED},
    )
    encoded = msgspec.json.encode(figures)
    while len(encoded) > MAX_FIGURES_BYTES and figures.models:
        figures = structs.replace(figures, models=figures.models[: len(figures.models) // 2])
        encoded = msgspec.json.encode(figures)
    return encoded.decode()


def decode_figures(data: str) -> ServerFigures | None:
    """Returns the figures of a server; None if it has left none so far, or one of another version left others."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def takes_requests(data: str) -> bool:
    """Tells from the figures of a server whether it takes requests. One that has left none so far is starting."""
    figures = decode_figures(data)
    return bool(data) if figures is None else figures.serving


class FiguresReporter:
    """Returns the figures of this server, which are made anew at most once in `REPORT_INTERVAL_S`, or if it drains."""

    def __init__(
        self,
        settings: Settings,
        models: Sequence[ServedModel],
        count_turns: Callable[[], int],
        is_serving: Callable[[], bool],
    ) -> None:
        self._settings, self._models, self._count_turns, self._is_serving = settings, models, count_turns, is_serving
        self._started_at, self._made_at, self._figures, self._serving = time.time(), -REPORT_INTERVAL_S, "", False

    def report(self) -> str:
        """Returns the figures as JSON. Call it on the event loop."""
        now, serving = time.monotonic(), self._is_serving()
        if now - self._made_at >= REPORT_INTERVAL_S or serving != self._serving:
            self._made_at, self._serving = now, serving
            self._figures = encode_figures(
                self._settings, self._models, self._count_turns(), self._started_at, serving=serving
            )
        return self._figures
