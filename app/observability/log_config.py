"""Log configuration: readable lines for a terminal, or one JSON object per line.

Requests are logged with method, path, status, time and id. Prompts, responses, headers and keys are never logged.
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
    """Logs this project's messages from level INFO on and those of libraries from WARNING on, all to standard error."""
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(_JsonFormatter())
        renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        renderers = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    common_processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*common_processors, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


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
