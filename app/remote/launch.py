"""Creates the engine over remote servers from the parsed options. Imports no torch."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from antiphon.app.models.options import default_name
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.remote.image_probe import build_image_probe
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Engine
from antiphon.engine.remote.backend_apis.base import EngineKind
from antiphon.engine.remote.child_server import ChildServer
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.model_files import describe_model
from antiphon.engine.remote.options import RemoteOptions, RemoteTimeouts
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint, parse_endpoint
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import LoadedFormat
from antiphon.harmony.grammar import build_probe_grammar, relax_whitespace

MAX_SOCKET_FOLDER_BYTES = 64
"""Length of a path up to which a folder and a socket in it stay below 104 bytes, the least limit of any system."""
SHORT_TEMPORARY_FOLDER = "/tmp"  # noqa: S108  # `mkdtemp` creates a private folder in it
VLLM_FLAGS = (
    "--structured-outputs-config",
    '{"backend":"guidance","enable_in_reasoning":true}',
    "--enable-prompt-tokens-details",
    "--scheduling-policy",
    "priority",
)
"""Flags with which vLLM follows grammars from the first token, counts cached tokens and knows priorities."""


async def create_remote_engine(
    options: ServeOptions,
    template: str | None,
    on_status: Callable[[str, str], None],
    *,
    separate_owners: bool,
    continue_within_s: float = RemoteTimeouts().continue_within_s,
) -> tuple[Engine, LoadedFormat, str]:
    """Returns the engine, the model's format, and the model's name. Raises `ServeError` or `LoadError`.

    `on_status` is called with the model's name and a step of the start. `continue_within_s`: see `RemoteTimeouts`.
    """
    remote = options.remote
    endpoints, child = tuple(_parse_url(url) for url in remote.urls), None
    if not endpoints:
        endpoint, child = _create_child(options)
        endpoints = (endpoint,)
    source = remote.tokenizer or options.model
    if source is None:
        raise ServeError(f"--engine {options.engine} needs --tokenizer: the folder or hub id of the model it serves")
    fetch = partial(fetch_checkpoint, offline=options.offline, revision=options.revision, with_weights=False)
    folder = await asyncio.to_thread(fetch, source)
    loaded = detect.load_format(folder, options.dialect, template)
    model, info = describe_model(
        folder,
        max_model_len=options.engine_options.max_model_len,
        grammar_probe=build_probe_grammar,
        relax_grammar=relax_whitespace,
        stop_ids=loaded.format.stop_ids,
    )
    model = msgspec.structs.replace(model, image_probe=build_image_probe(loaded.format))
    remote_options = _build_options(options, endpoints, separate_owners)
    key, name = _look_up_key(remote.key_env), options.name or remote.model or default_name(source)
    engine = RemoteEngine(
        remote_options,
        model,
        info,
        api_key=key,
        timeouts=RemoteTimeouts(continue_within_s=continue_within_s),
        on_status=partial(on_status, name),
        child=child,
    )
    return engine, loaded, name


def _build_options(
    options: ServeOptions, endpoints: tuple[RemoteEndpoint, ...], separate_owners: bool
) -> RemoteOptions:
    remote = options.remote
    return RemoteOptions(
        endpoints=endpoints,
        kind=None if options.engine == "remote" else cast("EngineKind", options.engine),
        model=remote.model,
        surface=remote.surface,
        affinity_header=remote.affinity_header,
        capacity=remote.capacity,
        silence_timeout_s=remote.timeout_s,
        grammar=remote.grammar,
        continuation=remote.continuation,
        separate_owners=separate_owners,
    )


def _create_child(options: ServeOptions) -> tuple[RemoteEndpoint, ChildServer]:
    """Returns the address and the process of a vLLM server on a Unix socket. Raises `ServeError`."""
    if options.engine != "vllm" or options.model is None:
        raise ServeError(f"--engine {options.engine} needs --engine-url URL")
    program = shutil.which("vllm")
    if program is None:
        raise ServeError("the command vllm is not installed: install vLLM, or give --engine-url URL of a server")
    folder = _create_socket_folder()
    socket_path = str(folder / "engine.sock")
    command = [program, "serve", options.model, "--uds", socket_path, *VLLM_FLAGS]
    if options.revision is not None:
        command += ["--revision", options.revision]
    if options.engine_options.max_model_len is not None:
        command += ["--max-model-len", str(options.engine_options.max_model_len)]
    return RemoteEndpoint(socket_path=socket_path), ChildServer(command, folder=folder)


def _create_socket_folder() -> Path:
    """Creates a folder for a Unix socket: a temporary one, whose path the system's limit allows."""
    parent = Path(tempfile.gettempdir())
    is_too_long = len(os.fsencode(parent)) > MAX_SOCKET_FOLDER_BYTES
    return Path(tempfile.mkdtemp(prefix="antiphon-vllm-", dir=SHORT_TEMPORARY_FOLDER if is_too_long else parent))


def _parse_url(url: str) -> RemoteEndpoint:
    try:
        return parse_endpoint(url)
    except ValueError as error:
        raise ServeError(f"--engine-url: {error}") from None


def _look_up_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ServeError(f"--engine-key-env {variable}: the variable is not set")
    if not key.isascii() or not key.isprintable():
        raise LoadError(f"--engine-key-env {variable}: the key contains characters that a header cannot carry")
    return key
