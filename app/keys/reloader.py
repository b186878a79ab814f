"""Reads the file of API keys and the TLS certificate again while the server runs."""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from antiphon.app.keys.file_marks import mark_files
from antiphon.app.keys.key_file import read_key_file
from antiphon.app.keys.key_ring import KeyChange, KeyRing
from antiphon.app.keys.pace import pause_between
from antiphon.app.options.api_keys import ApiKey, ApiKeyError
from antiphon.app.options.settings import FileMark

CHECK_INTERVAL_S = 5.0
"""Time between two looks for a changed file."""
STABLE_S = 1.0
"""Time for which a file must be unchanged before it is read: it may be half written."""
MAX_STABLE_WAIT_S = 30.0
"""Time after which a file that keeps changing is read as it is."""
_log = structlog.get_logger(__name__)


class ReloadReport(Struct, frozen=True, kw_only=True):
    """Result of a reload."""

    keys: int
    """Number of API keys that are in force."""
    revoked: int = 0
    """Number of keys that are not valid any more."""
    revoked_ids: tuple[str, ...] = ()
    cancelled_turns: int = 0
    certificate: bool = False
    """True if the certificate was read again."""
    faults: tuple[str, ...] = ()
    """A line for each file that cannot be used: what it held before stays in force."""
    not_reloaded: tuple[str, ...] = ()
    """Settings that only a new start changes."""


class CertificateError(ValueError):
    """A certificate or its key cannot be used. The message is one line."""


class Reloader:
    """Reloads on demand, and when a file has changed. A file that cannot be used changes nothing.

    `on_revoked` is called with the keys that are not valid any more; it returns the number of turns that it cancels.
    `marks` has the files as they were before the start read them: a later change is noticed, however long the start
    takes.
    """

    def __init__(
        self,
        keys: KeyRing,
        key_file: Path | None,
        on_revoked: Callable[[Sequence[ApiKey]], int] = lambda _: 0,
        not_reloaded: tuple[str, ...] = (),
        marks: Mapping[Path, FileMark] | None = None,
    ) -> None:
        self._keys, self._key_file, self._on_revoked = keys, key_file, on_revoked
        self._not_reloaded = not_reloaded
        self._certificate_files: tuple[Path, ...] = ()
        self._load_certificate: Callable[[], None] | None = None
        self._lock = asyncio.Lock()
        self._marks = dict(marks or {})
        self.on_reload: list[Callable[[ReloadReport], None]] = []
        """Called after each reload."""

    def add_certificate(self, files: Sequence[Path], load: Callable[[], None]) -> None:
        """Adds files of a certificate. `load` runs in a thread; it may raise `CertificateError`."""
        self._certificate_files, self._load_certificate = tuple(files), load

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a reload reads."""
        return (*(() if self._key_file is None else (self._key_file,)), *self._certificate_files)

    async def reload(self) -> ReloadReport:
        """Reads all files again. Never raises: the report has the faults."""
        async with self._lock:
            faults: list[str] = []
            marks = await self._wait_stable()
            removed, num_cancelled = await self._reload_keys(faults)
            removed_ids = await asyncio.to_thread(_list_ids, removed)
            certificate = await self._reload_certificate(faults)
            self._marks = marks
            report = ReloadReport(
                keys=len(self._keys),
                revoked=len(removed),
                revoked_ids=removed_ids,
                cancelled_turns=num_cancelled,
                certificate=certificate,
                faults=tuple(faults),
                not_reloaded=self._not_reloaded,
            )
        _log_report(report)
        for call in self.on_reload:
            call(report)
        return report

    async def watch(self) -> None:
        """Reloads when a file has changed; runs until it is cancelled."""
        if not self.files:
            return
        self._marks = await asyncio.to_thread(self._mark_files) | self._marks
        while True:
            if await asyncio.to_thread(self._mark_files) != self._marks:
                await self.reload()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _reload_keys(self, faults: list[str]) -> tuple[tuple[ApiKey, ...], int]:
        """Returns the keys that are not valid any more, and the number of their turns that are cancelled."""
        if self._key_file is None:
            return (), 0
        try:
            change = await asyncio.to_thread(_prepare_keys, self._keys, self._key_file)
        except ApiKeyError as error:
            faults.append(f"{error}; the API keys are as before")
            return (), 0
        removed = self._keys.apply(change)
        return removed, self._on_revoked(removed) if removed else 0

    async def _reload_certificate(self, faults: list[str]) -> bool:
        if self._load_certificate is None:
            return False
        try:
            await asyncio.to_thread(self._load_certificate)
        except CertificateError as error:
            faults.append(f"{error}; the certificate is as before")
            return False
        return True

    async def _wait_stable(self) -> dict[Path, FileMark]:
        """Waits until no file has changed for a second. Returns the marks of what is read then."""
        deadline = time.monotonic() + MAX_STABLE_WAIT_S
        marks = await asyncio.to_thread(self._mark_files)
        while time.monotonic() < deadline and any(_is_fresh(mark) for mark in marks.values()):
            await asyncio.sleep(STABLE_S)
            again = await asyncio.to_thread(self._mark_files)
            if again == marks:
                break
            marks = again
        return marks

    def _mark_files(self) -> dict[Path, FileMark]:
        return mark_files(self.files)


def _is_fresh(mark: FileMark) -> bool:
    """Tells whether a file may have changed within the last second. A time in the future counts as one."""
    return mark is not None and time.time() - mark[2] / 1e9 < STABLE_S


def _prepare_keys(keys: KeyRing, path: Path) -> KeyChange:
    """Returns what the keys of a file change. It takes long: call it in a thread.

    Python's collector is off meanwhile: it would search the objects of all streams each time that the reader has made
    enough new ones, none of which are in a cycle.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return keys.prepare(pause_between(read_key_file(path, pause_between)))
    finally:
        if is_enabled:
            gc.enable()


def _list_ids(keys: Sequence[ApiKey]) -> tuple[str, ...]:
    """Returns the ids of keys. It takes long: call it in a thread."""
    return tuple(key.id for key in pause_between(keys))


def _log_report(report: ReloadReport) -> None:
    fields = {"keys": report.keys, "revoked": report.revoked, "not_reloaded": ", ".join(report.not_reloaded)}
    if report.certificate:
        fields["certificate"] = "reloaded"
    if report.faults:
        _log.warning("reload failed", faults="; ".join(report.faults), **fields)
    else:
        _log.info("reloaded", **fields)
