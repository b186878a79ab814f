"""Parsed options of `antiphon serve`, and the error for options that cannot be served."""

from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from antiphon.app.remote.options import RemoteServeOptions
from antiphon.engine.options import EngineOptions


class ServeError(click.ClickException):
    """The command cannot run; the message is one line that names the remedy."""

    exit_code = 2


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The model to serve, and its engine."""

    model: str | None = None
    """Folder or hub id. None: the embedded model."""
    served_model_names: tuple[str, ...] = ()
    """Additional names of the model."""
    embedding_models: tuple[str, ...] = ()
    """Folders or hub ids of embedding models to serve, too."""
    rerank_models: tuple[str, ...] = ()
    """Folders or hub ids of reranking models to serve, too."""
    engine: Literal["torch", "scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"] = "torch"
    script: Path | None = None
    dialect: str | None = None
    """Output dialect of the model. None: detected."""
    chat_template: Path | None = None
    """Jinja file to use instead of the model's own chat template."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub. None: the main branch."""
    offline: bool = False
    engine_options: EngineOptions = EngineOptions()
    remote: RemoteServeOptions = RemoteServeOptions()
