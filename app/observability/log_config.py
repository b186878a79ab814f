"""What the server writes of itself: for a person at a terminal, or a JSON object a line for a machine.

Requests appear by method, path, status, time and id. No prompt, no answer, no header and no key is ever logged.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import structlog
from structlog.typing import Processor

LogFormat = Literal["console", "json"]


def configure_logging(style: LogFormat) -> None:
    """Our own log from information on, the libraries' from warnings on; all of it to standard error."""
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(_JsonFormatter())
        chain: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        chain = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    stamps: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*stamps, *chain],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class _JsonFormatter(logging.Formatter):
    """A library's record in the shape of our own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, however many the message had."""
        said = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)
