"""The packed weights of one start: loads them from a file, or collects them and writes them after the start.

Two files belong to a model in a form. `KEY.packed` holds its packed weights, `KEY-CHECKS.json` what the checks of
an earlier start have found: with the same code, libraries and options, they need not run again.
"""

import atexit
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.kernels.int4_layout import PackedInt4Weight
from antiphon.engine.kernels.int8_layout import PackedInt8Weight
from antiphon.engine.pack_cache.folder import CHECKS_SUFFIX, PACK_SUFFIX, delete_pack, make_room, mark_used
from antiphon.engine.pack_cache.pack_file import (
    DamagedPackError,
    PackEntry,
    PackFile,
    PackFileWriter,
    create_unfinished_file,
)
from antiphon.engine.regular_files import read_regular_file

log = logging.getLogger(__name__)

WEIGHT_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (PackedInt8Weight, PackedInt4Weight)}
"""Classes of packed weights, named tuples of tensors and numbers, by the names that stand for them in files."""


MAX_CHECKS_BYTES = 64 << 20
"""Largest file of checks. One for each matrix of a mixture of experts takes a megabyte."""

WRITER_NICENESS = 10
"""Niceness of the thread that writes the files."""


class StartChecks(msgspec.Struct, frozen=True):
    """Results of the checks of a start."""

    forward: str
    """Class of the forward pass whose logits matched."""
    groups: list[list[str]]
    """Linear layers to pack, and to merge."""
    similarity: float
    """Cosine similarity of the logits to those in fp32."""
    agreement: float
    """Share of the tokens of which the most likely one is the same."""


class PackSession:
    """Packed weights and checks of one model in one form.

    Without a folder nothing is loaded or written. A fault of a file ends the use of the cache with one line in the log:
    it never ends the start.
    """

    def __init__(
        self, folder: Path | None, key: str = "", checks_key: str = "", limit_bytes: int = 0, expected_bytes: int = 0
    ) -> None:
        self._folder, self._limit_bytes, self._expected_bytes = folder, limit_bytes, expected_bytes
        self._pack_path = Path(folder or "", f"{key}{PACK_SUFFIX}")
        self._checks_path = Path(folder or "", f"{key}-{checks_key}{CHECKS_SUFFIX}")
        self._file = None if folder is None else self._open_file()
        self._loaded: dict[str, PackEntry] = {}
        """Entries of the file. If another one is damaged, they are written to the new file from the deleted one."""
        self._unwritten: dict[str, PackEntry] | None = None
        self._finishing: threading.Thread | None = None
        self._stopping = threading.Event()
        self.checks = None if self._file is None else self._read_checks()

    @property
    def is_loaded(self) -> bool:
        """True if there is a file of packed weights to load."""
        return self._file is not None

    def _open_file(self) -> PackFile | None:
        try:
            file = PackFile(self._pack_path)
        except FileNotFoundError:
            return None
        except (OSError, DamagedPackError) as error:
            self._drop_file(error)
            return None
        mark_used(self._pack_path)
        return file

    def _drop_file(self, error: Exception) -> None:
        report_fallback(log, "pack_cache", "%s is packed again: %s", self._pack_path, one_line(error))
        delete_pack(self._pack_path)

    def _read_checks(self) -> StartChecks | None:
        try:
            checks = read_regular_file(self._checks_path, MAX_CHECKS_BYTES)
            return msgspec.json.decode(checks, type=StartChecks)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None

    def load(self, name: str) -> Any:
        """Returns the packed weight of this name, mapped read-only; None if there is none."""
        entry = self.load_entry(name)
        cls = None if entry is None else WEIGHT_CLASSES.get(str(entry.details.get("class", "")))
        if entry is None or cls is None:
            return None
        numbers = {field: value for field, value in entry.details.items() if field != "class"}
        try:
            return cls(**numbers, **entry.tensors)
        except TypeError as error:
            self._give_up(error)
            return None

    def load_entry(self, name: str) -> PackEntry | None:
        """Returns the tensors of this name, mapped read-only; None if there are none.

        If they are damaged, the file is deleted, and this start keeps the weights that it packs from now on.
        """
        if self._file is None:
            return None
        try:
            entry = self._file.load(name)
        except (DamagedPackError, ValueError, TypeError, RuntimeError) as error:
            self._give_up(error)
            return None
        if entry is not None:
            self._loaded[name] = entry
        return entry

    def _give_up(self, error: Exception) -> None:
        """Ends the use of a damaged file. The weights that were loaded from it are written to the next one."""
        self._drop_file(error)
        self._file = self.checks = None
        self.begin()
        if self._unwritten is not None:
            self._unwritten |= self._loaded
        self._loaded = {}

    def begin(self) -> None:
        """Prepares to store the weights of a model that is packed now, if their expected size fits."""
        if self._folder is None or self._file is not None:
            return
        try:
            reason = make_room(self._folder, self._expected_bytes, self._limit_bytes)
        except OSError as error:
            reason = one_line(error)
        if reason is None:
            self._unwritten = {}
        else:
            report_fallback(log, "pack_cache", "the packed weights are not kept: %s", reason)

    def store(self, name: str, packed: Any) -> None:
        """Keeps a packed weight, a named tuple whose class is in `WEIGHT_CLASSES`, for `finish`."""
        if type(packed).__name__ not in WEIGHT_CLASSES:
            return
        fields = packed._asdict()
        tensors = {field: value for field, value in fields.items() if hasattr(value, "data_ptr")}
        details = {field: value for field, value in fields.items() if field not in tensors}
        self.store_entry(name, PackEntry(tensors, details | {"class": type(packed).__name__}))

    def store_entry(self, name: str, entry: PackEntry) -> None:
        """Keeps tensors under a name for `finish`. They must not change until they are written."""
        if self._unwritten is not None:
            self._unwritten[name] = entry

    def finish(self, checks: StartChecks | None) -> None:
        """Writes the file and the results of checks in a thread, for which the start does not wait."""
        self._loaded = {}
        if self._folder is None or (self._unwritten is None and (self._file is None or self.checks is not None)):
            return
        self._finishing = threading.Thread(target=self._write_files, args=(checks,), name="pack-cache", daemon=True)
        atexit.register(self.stop)  # the interpreter aborts the process if the thread still runs at its end
        self._finishing.start()

    def stop(self) -> None:
        """Ends the writing of files. Those that are not complete are deleted."""
        self._stopping.set()
        self.wait()

    def wait(self) -> None:
        """Waits until the files are written."""
        if self._finishing is not None:
            self._finishing.join()

    def _write_files(self, checks: StartChecks | None) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: the first requests come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        entries, self._unwritten = self._unwritten, None
        try:
            if entries is not None:
                self._write_pack(entries)
            if checks is not None and not self._stopping.is_set():
                file, unfinished = create_unfinished_file(self._checks_path)
                with file:
                    file.write(json.dumps(msgspec.to_builtins(checks)).encode())
                unfinished.replace(self._checks_path)
        except OSError as error:
            log.warning("the packed weights are not kept: %s", one_line(error))
        finally:
            atexit.unregister(self.stop)

    def _write_pack(self, entries: dict[str, PackEntry]) -> None:
        """Writes the file of packed weights. Raises `OSError`, and then leaves no unfinished file."""
        writer = PackFileWriter(self._pack_path)
        try:
            for name in list(entries):
                writer.add(name, entries.pop(name))
                if self._stopping.is_set():
                    writer.discard()
                    return
            writer.commit()
        except OSError:
            writer.discard()
            raise
