"""Forwards what the worker process prints to the log of its parent.

The worker's standard output and error are one pipe. A thread of the parent reads it all the time, so that the worker
never waits for a reader, and its lines have the format of the parent's log.
"""

import logging
import os
import re

OUTPUT_READ_BYTES = 1 << 16
MAX_OUTPUT_LINE_BYTES = 1 << 16
"""Length at which a line without a line feed is forwarded in parts."""
WORKER_FORMAT = "%(levelname)s %(name)s: %(message)s"
"""Format of the worker's log lines, which `forward_output` parses."""
_RECORD = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ([\w.]+): ")

log = logging.getLogger(__name__)


def forward_output(descriptor: int) -> None:
    """Logs everything that arrives on a pipe, until its end; then closes it. Lines of a traceback stay together."""
    rest = b""
    try:
        while data := os.read(descriptor, OUTPUT_READ_BYTES):
            complete, separator, rest = (rest + data).rpartition(b"\n")
            if not separator and len(rest) > MAX_OUTPUT_LINE_BYTES:
                complete, rest = rest, b""
            _log_lines(complete)
        _log_lines(rest)
    finally:
        os.close(descriptor)


def _log_lines(data: bytes) -> None:
    """Logs lines. One in the format of the worker's log begins a record, and the lines after it belong to it."""
    records: list[list[str]] = []
    for line in data.decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        if _RECORD.match(line) or not records:
            records.append([line])
        else:
            records[-1].append(line)
    for lines in records:
        match = _RECORD.match(lines[0])
        if match is None:
            log.warning("%s", "\n".join(lines))
        else:
            message = "\n".join([lines[0][match.end() :], *lines[1:]])
            logging.getLogger(match[2]).log(logging.getLevelNamesMapping()[match[1]], "%s", message)
