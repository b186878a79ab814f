"""Parsed options of `antiphon serve`, and the error for options that cannot be served."""

import os
from pathlib import Path
from typing import Any, Literal

import click
from msgspec import Struct

from antiphon.app.base.settings import WILDCARD_HOSTS, Settings, is_loopback
from antiphon.app.remote_options import RemoteServeOptions
from antiphon.engine.options import EngineOptions

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


class ServeError(click.ClickException):
    """The command cannot run; the message is one line that names the remedy."""

    exit_code = 2


class ModelOption(Struct, frozen=True):
    """A field of the options of one model, and its value."""

    model: str
    field: str
    value: Any


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The models to serve, and their engines. `antiphon.app.models.options` splits them into those of each model."""

    models: tuple[str, ...] = ()
    """Folders or hub ids, each perhaps after NAME=. None: the embedded model."""
    name: str = ""
    """First name of the only model. Empty: the hub id, or the last part of the folder's path."""
    served_model_names: tuple[str, ...] = ()
    """Additional names of the only model, or one for each of several."""
    model_options: tuple[ModelOption, ...] = ()
    """Options that were given for one of the models."""
    load_on_demand: bool = False
    """Whether models are loaded at their first use, and not at the start."""
    idle_unload_s: float | None = None
    """Time after its last use after which a model is unloaded. None: models stay loaded."""
    memory_gib: float | None = None
    """Memory of all loaded models together. None: no limit."""
    load_timeout_s: float = 600.0
    """Time that a request waits for its model to be loaded."""
    embedding_models: tuple[str, ...] = ()
    """Folders or hub ids of embedding models to serve, too."""
    rerank_models: tuple[str, ...] = ()
    """Folders or hub ids of reranking models to serve, too."""
    engine: Literal["torch", "scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"] = "torch"
    script: Path | None = None
    record: Path | None = None
    """File to write the engine's token streams to."""
    dialect: str | None = None
    """Output dialect of the model. None: detected."""
    chat_template: Path | None = None
    """Jinja file to use instead of the model's own chat template."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub. None: the main branch."""
    offline: bool = False
    engine_options: EngineOptions = EngineOptions()
    remote: RemoteServeOptions = RemoteServeOptions()

    @property
    def model(self) -> str | None:
        """Folder or hub id of the only model. None: the embedded model."""
        return self.models[0] if self.models else None


def resolve_store(value: str | None) -> tuple[Path | None, str | None]:
    """Returns the path of the store file, and the URL of a database. Both are None for a store in memory."""
    if value == "memory":
        return None, None
    if value and value.startswith(POSTGRES_SCHEMES):
        return None, value
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(value).expanduser() if value else data / "antiphon" / "responses.db", None


def check_store_url(url: str, key_file: Path | None, *, is_in_file: bool) -> None:
    """Raises `ServeError` for a database without a common key, or a password in the configuration file."""
    if key_file is None:
        remedy = "name a file with the key that all servers of the database share; it is created if missing"
        raise ServeError(f"--store postgresql://… requires --encryption-key-file: {remedy}")
    if is_in_file and ("password=" in url or ":" in url.partition("//")[2].rpartition("@")[0]):
        remedy = "use the variable ANTIPHON_STORE, or PGPASSFILE"
        raise ServeError(f"store: secrets do not belong into this file; for the password of the database, {remedy}")


def check_public_bind(settings: Settings, *, insecure: bool) -> None:
    """Raises `ServeError` if other machines can reach the server and it requires no API key."""
    if settings.api_key_digests or insecure or is_loopback(settings.host):
        return
    audience = "every network" if settings.host in WILDCARD_HOSTS else settings.host
    raise ServeError(
        f"--host {settings.host} opens the server to {audience}: set an API key with --api-key-file, or pass --insecure"
    )
