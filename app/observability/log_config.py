"""Log configuration: readable lines for a terminal, or one JSON object per line.

Requests are logged with method, path, status, time and id. Prompts, responses, headers and keys are never logged, so
a traceback has no values of variables. Readable lines show controls that a client, a file or a server has put into them
instead of sending them to the terminal.
"""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from antiphon.app.options.serve_options import LogFormat
from antiphon.kit.terminal_text import show_controls, show_line


def configure_logging(style: LogFormat, stream: TextIO) -> None:
    """Logs this project's messages from level INFO on and those of libraries from WARNING on, all to `stream`."""
    handler = logging.StreamHandler(stream)
    logging.captureWarnings(capture=True)
    if style == "json":
        handler.setFormatter(_JsonFormatter())
        renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        handler.setFormatter(_ConsoleFormatter("%(levelname)s %(name)s: %(message)s"))
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_write_traceback)
        renderers = [_show_values, console]
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    common_processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*common_processors, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def describe_dropped_json(count: int) -> str:
    """Returns the log line that reports dropped lines, as a JSON object."""
    fields = {
        "event": "log lines dropped",
        "count": count,
        "level": "warning",
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    }
    return json.dumps(fields) + "\n"


def _show_values(_: object, __: str, event_dict: EventDict) -> EventDict:
    """Makes the texts of a line safe for a terminal, before the renderer adds its colours.

    The renderer writes other values as Python does, with escapes for what cannot be printed.
    """
    return {name: show_line(value) if isinstance(value, str) else value for name, value in event_dict.items()}


def _write_traceback(target: TextIO, exc_info: ExcInfo) -> None:
    """Writes a traceback of files, lines and the error's message. The renderer's own one has the local variables."""
    target.write("\n" + show_controls("".join(traceback.format_exception(*exc_info)).rstrip("\n")))


class _ConsoleFormatter(logging.Formatter):
    """Formats records of libraries as lines that are safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message, and the traceback if there is one."""
        return show_controls(super().format(record))


class _JsonFormatter(logging.Formatter):
    """Formats records of libraries with the same fields as this project's own log lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line, even for a message with several."""
        fields = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
