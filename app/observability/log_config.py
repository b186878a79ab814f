"""Log configuration: readable lines for a terminal, or one JSON object per line.

Requests are logged with method, path, status, time and id. Prompts, responses, headers and keys are never logged.
"""

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

import structlog
from structlog.typing import Processor

from antiphon.app.serve_options import LogFormat


def configure_logging(style: LogFormat, stream: TextIO) -> None:
    """Logs this project's messages from level INFO on and those of libraries from WARNING on, all to `stream`."""
    handler = logging.StreamHandler(stream)
    logging.captureWarnings(capture=True)
    if style == "json":
        handler.setFormatter(_JsonFormatter())
        renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        renderers = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
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
