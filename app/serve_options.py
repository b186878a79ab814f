"""Parsed options of `antiphon serve`, and the error for options that cannot be served."""

from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from antiphon.engine.options import EngineOptions


class ServeError(click.ClickException):
    """The command cannot be run; the message is one line that names the remedy."""

    exit_code = 2


class ServeOptions(Struct, frozen=True, kw_only=True):
    """Which model to serve, and with which engine."""

    model: str | None = None
    """A folder or a hub id; None: the embedded model."""
    served_model_names: tuple[str, ...] = ()
    """Additional names."""
    engine: Literal["torch", "scripted"] = "torch"
    script: Path | None = None
    dialect: str | None = None
    """None: detected."""
    offline: bool = False
    engine_options: EngineOptions = EngineOptions()
