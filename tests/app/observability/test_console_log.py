"""Readable log lines: safe for a terminal, and without the values of variables."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog
from rich.console import Console

from antiphon.app.observability.access_log import console_format
from antiphon.app.observability.log_config import configure_logging
from antiphon.app.observability.startup import StartupScreen
from antiphon.app.turn_types.access_record import AccessRecord
from tests.kit.hostile_texts import HOSTILE_TEXTS, find_foreign_controls

ATTACK = "".join(text for name, text in HOSTILE_TEXTS.items() if name != "long")


class ColorStream(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    kept, target = (root.handlers[:], root.level), ColorStream()
    configure_logging("console", target)
    yield target
    root.handlers[:], level = kept
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def fail(prompt: str) -> None:
    raise ValueError(f"bad value {ATTACK} of {len(prompt)} characters")


def test_lines_show_what_a_terminal_would_obey(stream: io.StringIO) -> None:
    log = structlog.get_logger("test")
    message = f"event {ATTACK}"
    log.info(message, model=ATTACK, names=[ATTACK], error={ATTACK: 1}, count=3)
    logging.getLogger("library").warning("library %s", ATTACK)
    text = stream.getvalue()
    assert not find_foreign_controls(text.encode("utf-8", "surrogatepass"))
    assert "event x␛[2J" in text and "WARNING library: library x␛[2J" in text and "count" in text
    assert text.count("\n") == 2


@pytest.mark.parametrize("logger", ["structlog", "logging"])
def test_traceback_has_the_error_and_no_value_of_a_variable(stream: io.StringIO, logger: str) -> None:
    try:
        fail(prompt="private words")
    except ValueError:
        (structlog.get_logger("test") if logger == "structlog" else logging.getLogger("test")).exception("it failed")
    text = stream.getvalue()
    assert "it failed" in text and "in fail" in text and "ValueError: bad value x␛[2J" in text
    assert "private words" not in text.replace('fail(prompt="private words")', "")
    assert not find_foreign_controls(text.encode("utf-8", "surrogatepass"))


def test_access_log_shows_what_a_terminal_would_obey() -> None:
    screen = Console(file=ColorStream(), force_terminal=True, color_system="standard", no_color=False)
    record = AccessRecord(f"GET{ATTACK}", f"/{ATTACK}\n", 404, 0.001, f"req{ATTACK}", f"code{ATTACK}")
    line = console_format(screen)(record, 0.0)
    assert not find_foreign_controls(line.encode()) and "\n" not in line and "/x␛[2J" in line


def test_status_of_an_engine_shows_what_a_terminal_would_obey() -> None:
    target = io.StringIO()
    with StartupScreen(Console(file=target, highlight=False)) as screen:
        screen.start([f"model{ATTACK}"])
        screen.update(f"model{ATTACK}", f"loading: stage {ATTACK}")
        screen.show_grpc("127.0.0.1:1", f"model{ATTACK}")
    assert not find_foreign_controls(target.getvalue().encode()) and "stage x␛[2J" in target.getvalue()
