"""What was asked for on a command line, and how one says that it cannot be done."""

from pathlib import Path

import click
from msgspec import Struct


class Refusal(click.ClickException):
    """What cannot be done, in one line."""

    exit_code = 2


class Wish(Struct, frozen=True, kw_only=True):
    """Which model is to be served, as it was asked for."""

    source: str | None
    names: tuple[str, ...]
    engine: str
    script: Path | None
    dialect: str | None
    device: str | None
    context: int | None
    threads: int | None
    compile: bool
    slots: int | None
    kv_gib: float | None
    kv_dtype: str | None
    quantize: str | None
    deterministic: bool
    offline: bool
