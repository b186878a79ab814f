"""Parsed options of `antiphon serve`, and the error for options that cannot be served."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from msgspec import Struct, structs

from antiphon.app.options.remote_options import RemoteServeOptions
from antiphon.app.options.settings import WILDCARD_HOSTS, Settings, is_loopback
from antiphon.engine.options import EngineOptions, Option
from antiphon.harmony.dialects import NAMES

LogFormat = Literal["console", "json"]
POSTGRES_SCHEMES = ("postgresql://", "postgres://")


class ServeError(click.ClickException):
    """The command cannot run; the message is one line that names the remedy."""

    exit_code = 2


class ModelOption(Struct, frozen=True):
    """A field of the options of one model, and its value."""

    model: str
    field: str
    value: Any


_model, _memory = partial(Option, "Model"), partial(Option, "Memory")
_keys = partial(Option, "Keys and TLS")


class StartOptions(Struct, frozen=True, kw_only=True):
    """Options that only the command itself reads."""

    api_keys: Annotated[
        tuple[str, ...],
        _keys(
            "API key that clients must send; repeatable. Other users of the machine can see it in the process list: "
            "use --api-key-file or the variable, which may hold several keys separated by spaces."
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        _keys("File with API keys: one per line, or TOML. It is read again when it changes.", syntax="file"),
    ] = None
    insecure: Annotated[bool, _keys("Allow a non-loopback address without an API key.")] = False
    replace: Annotated[
        bool,
        Option("Server", "Take the place of the server of this user on the port, which ends its responses and exits."),
    ] = False
    store: Annotated[
        str | None,
        Option(
            "Storage",
            "File for stored responses, postgresql://USER:PASSWORD@HOST/DATABASE, or `memory`. "
            "Default: antiphon/responses.db in the user's data folder.",
        ),
    ] = None
    log_format: Annotated[LogFormat, Option("Logging", "Log lines for people, or one JSON object per line.")] = (
        "console"
    )


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The models to serve, and their engines. `antiphon.app.models.options` splits them into those of each model."""

    models: tuple[str, ...] = ()
    """Folders or hub ids, each perhaps after NAME=. None: the embedded model."""
    name: str = ""
    """First name of the only model. Empty: the hub id, or the last part of the folder's path."""
    served_model_names: Annotated[
        tuple[str, ...], _model("Additional model name; repeatable. With several models, one for each, in order.")
    ] = ()
    model_options: Annotated[
        tuple[ModelOption, ...],
        _model(
            "Option of one of several models, such as coder:quantization=int4; repeatable.", syntax="model:option=value"
        ),
    ] = ()
    dialect: Annotated[
        str | None,
        _model(
            "Output dialect of the model; see `antiphon dialects`. Default: detected.",
            choices=NAMES,
            metavar="TEXT",
            scope="one",
        ),
    ] = None
    chat_template: Annotated[
        Path | None, _model("Jinja file to use instead of the model's own chat template.", scope="one")
    ] = None
    revision: Annotated[
        str | None, _model("Branch, tag or commit of a model of the hub. Default: the main branch.", scope="one")
    ] = None
    offline: Annotated[bool, _model("Load hub models from the local cache only.")] = False
    embedding_models: Annotated[
        tuple[str, ...], _model("Folder or hub id of a model to serve on /v1/embeddings, too; repeatable.")
    ] = ()
    rerank_models: Annotated[
        tuple[str, ...], _model("Folder or hub id of a model to serve on /v1/rerank and /v1/score, too; repeatable.")
    ] = ()
    engine: Annotated[
        Literal["torch", "scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"],
        Option(
            "Engine",
            "torch runs a model; scripted replays the file of --script; the others use the servers of --engine-url "
            "(remote: of any of these kinds).",
        ),
    ] = "torch"
    script: Annotated[Path | None, Option("Engine", "TOML file that the scripted engine replays.")] = None
    record: Annotated[
        Path | None,
        Option(
            "Engine",
            "New file for the engine's token streams, as a script for --script. It holds prompts and replies in clear.",
            syntax="file",
        ),
    ] = None
    load_on_demand: Annotated[
        bool, _memory("Load each model at its first use. Default: all models at the start.", scope="each")
    ] = False
    idle_unload_s: Annotated[
        float | None,
        _memory(
            "Unload a model that was not used for this time, such as 15m; its next request loads it again.",
            syntax="duration",
            scope="each",
        ),
    ] = None
    """None: models stay loaded."""
    memory_gib: Annotated[
        float | None,
        _memory(
            "Memory in GiB for all loaded models together. A model that does not fit takes the place of the least "
            "recently used ones. Default: no limit.",
            above=0,
        ),
    ] = None
    load_timeout_s: Annotated[float, _memory("Seconds that a request waits for its model to be loaded.", above=0)] = (
        600.0
    )
    engine_options: EngineOptions = EngineOptions()
    remote: RemoteServeOptions = RemoteServeOptions()

    @property
    def model(self) -> str | None:
        """Folder or hub id of the only model. None: the embedded model."""
        return self.models[0] if self.models else None


def list_options(struct: type[Struct]) -> list[tuple[structs.FieldInfo, Option]]:
    """Returns the fields of a struct that options set."""
    fields = [(field, getattr(field.type, "__metadata__", ())) for field in structs.fields(struct)]
    return [(field, metadata[0]) for field, metadata in fields if metadata]


def flag_name(field: str) -> str:
    """Returns the name of the option that sets a field of one value, unless the option has a name of its own."""
    return field.removesuffix("_s").replace("_", "-")


def _per_model_fields(scope: str) -> tuple[str, ...]:
    found = (*list_options(EngineOptions), *list_options(ServeOptions))
    return tuple(field.name for field, option in found if option.scope == scope)


FORMAT_FIELDS = _per_model_fields("one")
"""Fields that describe one model. With several models, they are given for each by name."""
PER_MODEL_OPTIONS = {flag_name(name): name for name in (*FORMAT_FIELDS, *_per_model_fields("each"))}
"""Options that `--model-option` can set, and their fields. Those after the first ones hold for every other model."""


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


def check_inspect_store(settings: Settings) -> None:
    """Raises `ServeError` if turns are to be recorded in a store that ends with the server."""
    if settings.inspect == "store" and settings.store_file is None and settings.store_url is None:
        remedy = "name a file or a database with --store, or use --inspect memory"
        raise ServeError(f"--inspect store cannot be used with --store memory: {remedy}")


def check_public_bind(settings: Settings, *, insecure: bool) -> None:
    """Raises `ServeError` if other machines can reach the server and it requires no API key."""
    if settings.requires_key or insecure or is_loopback(settings.host):
        return
    audience = "every network" if settings.host in WILDCARD_HOSTS else settings.host
    raise ServeError(
        f"--host {settings.host} opens the server to {audience}: set an API key with --api-key-file, or pass --insecure"
    )


def check_lora_updates(settings: Settings, *, insecure: bool) -> None:
    """Raises `ServeError` if clients may load adapters, and of no folder, or none needs an API key."""
    if settings.allow_lora_updates != bool(settings.lora_dirs):
        raise ServeError(
            "--allow-lora-updates requires --lora-dir: name the folder whose adapters clients may load"
            if settings.allow_lora_updates
            else "--lora-dir names folders for clients: add --allow-lora-updates, or name adapters by --lora"
        )
    missing = next((folder for folder in settings.lora_dirs if not Path(folder).is_dir()), None)
    if missing is not None:
        raise ServeError(f"--lora-dir {missing}: there is no such folder; create it, or name another one")
    if settings.allow_lora_updates and not settings.requires_key and not insecure:
        raise ServeError(
            "--allow-lora-updates lets clients load adapters: set an API key with --api-key-file, or pass --insecure"
        )
