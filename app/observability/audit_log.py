"""The audit log: a JSON line for each act on the server itself and each deletion, with who, what, when and result.

It names keys by their ids and owners, and objects by their ids; it holds no key and no content.
"""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from antiphon.app.keys.reloader import ReloadReport
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.events.json_lines import encode_json_line

STANDARD_OUTPUT = Path("-")
FAULT_INTERVAL_S = 60.0
"""Time between two log lines about a file that cannot be written."""
_log = structlog.get_logger(__name__)


class AuditLogError(Exception):
    """The audit log cannot be opened. The message is one line for the operator."""


class AuditLog:
    """Appends lines to a file with mode 0600, or to standard output; None: nowhere.

    A line that cannot be written, for example because the disk is full, is told in the log; serving continues.
    """

    def __init__(self, target: Path | None) -> None:
        self._path = None if target == STANDARD_OUTPUT else target
        self._is_on, self._told_at = target is not None, float("-inf")
        if self._path is not None:
            try:
                os.close(self._open(self._path))
            except OSError as error:
                raise AuditLogError(f"--audit-log {self._path}: cannot be written: {error.strerror or error}") from None

    def record(self, action: str, who: str, result: str, **what: Any) -> None:
        """Writes a line."""
        if not self._is_on:
            return
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        line = encode_json_line({"time": at, "action": action, "who": who, "result": result, **what})
        try:
            if self._path is None:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            else:
                self._append(self._path, line)
        except (OSError, ValueError) as error:
            if time.monotonic() - self._told_at >= FAULT_INTERVAL_S:
                self._told_at = time.monotonic()
                _log.warning("the audit log cannot be written", reason=str(error))

    def record_request(self, request: AccessRecord) -> None:
        """Writes a line for a request that deletes, acts on the server, exports, or was refused such an act."""
        action = find_action(request)
        if action and request.status != 401:  # anybody can send a wrong key
            who = f"{request.owner or 'no key'} {request.key_id}".strip()
            result = "ok" if request.status < 400 else f"{request.status} {request.error_code}".strip()
            self.record(action, who, result, path=request.path, request_id=request.request_id)

    def record_reload(self, report: ReloadReport) -> None:
        """Writes a line for a reload, whatever caused it, with the keys that are not valid any more."""
        result = "; ".join(report.faults) or "ok"
        self.record("reload", "server", result, keys=report.keys, revoked=report.revoked_ids)

    def _open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _append(self, path: Path, line: bytes) -> None:
        """Opens the file for each line, so that a program may rotate it; a line is written as a whole or not at all."""
        descriptor = self._open(path)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):
                os.truncate(path, size)
                raise OSError(28, "No space left on device")
        finally:
            os.close(descriptor)


def find_action(request: AccessRecord) -> str:
    """Returns the audited action, such as `delete`; `refused` without the right to it, empty if it is not audited."""
    return "refused" if request.error_code == "insufficient_permissions" else request.action
