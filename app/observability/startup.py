"""Output of the start: loading progress and the addresses, as text for a person or as log lines in JSON.

Everything is written to standard error, so that standard output stays free for pipes.
"""

import socket
from collections.abc import Sequence
from typing import Self, TextIO

import structlog
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.status import Status
from rich.text import Text

from antiphon.app.models.status import loaded_info
from antiphon.app.options.settings import WILDCARD_HOSTS, Settings, is_loopback
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.fallbacks import list_kinds
from antiphon.kit.terminal_text import show_controls, show_line

CODEX_CONFIG = """model = "{model}"
model_provider = "antiphon"
[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}"
wire_api = "responses\""""
OPEN_WARNING = "No API key is required, and every machine that reaches this address can use the server."
PAGES_WARNING = "No API key is required, and every web page that a browser opens can use the server."
CODEX_ENV_KEY = '\nenv_key = "ANTIPHON_API_KEY"'


_log = structlog.get_logger(__name__)


def create_console(stream: TextIO) -> Console:
    """Returns a console on a stream; it writes plain text if that is not a terminal."""
    return Console(file=stream, highlight=False)


class StartupLog:
    """Shows the operator what the server does until it is ready: log lines in JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: there is no animated line to end."""

    def start(self, names: Sequence[str]) -> None:
        """Logs that each model is being loaded."""
        for name in names:
            _log.info("loading model", model=name)

    def update(self, name: str, status: str) -> None:
        """Logs a status of the engine."""
        _log.info("engine status", model=name, status=status)

    def print_lines(self, lines: str) -> None:
        """Writes lines of the access log."""
        self._stream.write(lines)

    def show_ready(
        self,
        settings: Settings,
        models: ModelRegistry,
        port: int,
        notes: dict[str, str],
        page_key: str = "",  # noqa: ARG002  # see below
    ) -> None:
        """Logs one line for the server and one for each model. `notes` maps a model's first name to an extra line.

        `page_key` is not logged: logs are read by others.
        """
        for served in models.all_models:
            info = loaded_info(served)
            if info is None:
                _log.info("model", names=served.names, note="loaded at its first use")
                continue
            _log.info(
                "model",
                names=served.names,
                description=info.description,
                device=info.device,
                dtype=info.dtype,
                max_model_len=info.max_model_len,
                note=notes.get(served.names[0], ""),
                fallbacks=list_kinds(info.fallbacks),
            )
        _log.info(
            "ready",
            base_urls=base_urls(settings, port),
            store="postgresql" if settings.store_url is not None else str(settings.store_file or "memory"),
            api_key_required=settings.requires_key,
            inspect=settings.inspect_mode,
        )
        for warning in access_warnings(settings):
            _log.warning(warning)

    def show_grpc(self, address: str, model: str) -> None:
        """Logs an address of gRPC, and the model of its engine service if there are several."""
        _log.info("gRPC ready", address=address, **({"model": model} if model else {}))


class StartupScreen:
    """The same for a person: an animated line in a terminal, which the context ends, or one line a stage; a banner."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self._status: Status | None = screen.status("")

    def __enter__(self) -> Self:
        return self

    def start(self, names: Sequence[str]) -> None:
        """Shows that these models are being loaded."""
        line = f"Loading {_show(', '.join(names))} …"
        if self._status is not None:
            self._status.update(line)
            self._status.start()
        if not self.screen.is_terminal:
            self.screen.print(line, soft_wrap=True)

    def update(self, name: str, status: str) -> None:
        """Shows a status of an engine. After `stop` shows only `ready`; the engine's log has the others."""
        name, stage = _show(name), status.removeprefix("loading").removeprefix(": ")
        if self._status is None:
            if status == "ready":
                self.screen.print(f"[dim]The engine of {name} is ready.[/]", soft_wrap=True)
        elif self.screen.is_terminal:
            self._status.update(f"Loading {name} … [dim]{_show(stage)}[/]")
        elif stage and stage != "ready":
            self.screen.print(f"Loading {name}: {_show(stage)}", soft_wrap=True)

    def print_lines(self, lines: str) -> None:
        """Prints complete lines, unchanged."""
        if self._status is None:
            self.screen.file.write(lines)
            self.screen.file.flush()
        else:  # above the animated line
            self.screen.print(Text.from_ansi(lines), soft_wrap=True)

    def show_ready(
        self, settings: Settings, models: ModelRegistry, port: int, notes: dict[str, str], page_key: str = ""
    ) -> None:
        """Ends the progress display and prints the banner. `page_key` is for a terminal only."""
        self.stop()
        show_banner(self.screen, settings, models, port, notes, page_key if self.screen.is_terminal else "")

    def show_grpc(self, address: str, model: str) -> None:
        """Prints an address of gRPC below the banner."""
        name = f" ({model})" if model else ""
        self.screen.print(f"[bold]gRPC[/] {_show(address + name)}\n", soft_wrap=True)

    def stop(self) -> None:
        """Ends the progress display."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __exit__(self, *_: object) -> None:
        self.stop()


StartupDisplay = StartupLog | StartupScreen


def _show(text: str) -> str:
    """Returns a text as markup. Names and descriptions come from files of models and from other servers."""
    return escape(show_line(text))


def base_urls(settings: Settings, port: int) -> list[str]:
    """Returns the base URLs for clients: the first for this machine, and one for others if all addresses are bound."""
    if settings.host not in WILDCARD_HOSTS:
        return [_base_url(settings, settings.host, port)]
    address = _network_address(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    return [_base_url(settings, host, port) for host in ("127.0.0.1", address) if host]


def _base_url(settings: Settings, host: str, port: int) -> str:
    return f"{'https' if settings.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/v1"


def grpc_address(settings: Settings, port: int) -> str:
    """Returns the address of gRPC as clients write it."""
    return f"[{settings.host}]:{port}" if ":" in settings.host else f"{settings.host}:{port}"


def _network_address(family: socket.AddressFamily) -> str:
    """Returns the address of this machine that packets to other networks come from; empty if there is none."""
    documentation_address = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((documentation_address, 9))  # selects a route and sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def access_warnings(settings: Settings) -> list[str]:
    """Returns a sentence for each kind of client that can use the server from outside without an API key."""
    if settings.requires_key:
        return []
    warnings = [] if is_loopback(settings.host) else [OPEN_WARNING]
    return [*warnings, PAGES_WARNING] if "*" in settings.allowed_origins else warnings


def show_banner(
    screen: Console,
    settings: Settings,
    models: ModelRegistry,
    port: int,
    notes: dict[str, str],
    page_key: str = "",
) -> None:
    """Prints the base URL, the models and examples to paste. `notes` maps a model's first name to an extra line."""
    (url, *network_urls), model = base_urls(settings, port), models.served[0].names[0]
    rows = [f"[bold]base URL[/]  {escape(url)}"]
    rows += [f"[bold]network[/]   {escape(network_url)}" for network_url in network_urls]
    for served in models.all_models:
        info, summary = loaded_info(served), "loaded at its first use"
        if info is not None:
            computes = "" if info.dtype in ("", "none") else f"computed in {info.dtype}"
            parts = (info.description, info.device, computes, f"context {info.max_model_len}")
            summary = " · ".join(part for part in parts if part not in ("", "none"))
        rows.append(f"[bold]model[/]     {_show(', '.join(served.names))}")
        rows.append(f"          {_show(summary)}")
        if note := notes.get(served.names[0]):
            rows.append(f"          {_show(note)}")
        rows += [f"[bold yellow]fallback[/]  {_show(each.reason)}" for each in (info.fallbacks if info else ())]
    location = "in memory, until the server exits" if settings.store_file is None else f"in {settings.store_file}"
    if settings.store_url is not None:
        location = "in a PostgreSQL database"  # its URL may have a password
    rows.append(f"[bold]responses[/] kept {_show(location)}")
    rows.append(f"[bold]API key[/]   {'required' if settings.requires_key else 'not required'}")
    rows.append(f"[bold]recording[/] {_describe_recording(settings)}")
    if settings.enable_page:
        rows.append(f"[bold]page[/]      {escape(url.removesuffix('/v1'))}/ui/{page_key and f'#key={page_key}'}")
    rows += [f"[bold yellow]warning[/]   {warning}" for warning in access_warnings(settings)]
    screen.print(Panel("\n".join(rows), title="antiphon", title_align="left", expand=False))
    screen.print("[bold]curl[/]", _curl_example(url, model, keyed=settings.requires_key), sep="\n", soft_wrap=True)
    screen.print("\n[bold]Codex[/], at the top of ~/.codex/config.toml", soft_wrap=True)
    codex = CODEX_CONFIG.format(model=model, url=url) + (CODEX_ENV_KEY if settings.requires_key else "")
    screen.print(escape(show_controls(codex)), soft_wrap=True)
    screen.print()


def _describe_recording(settings: Settings) -> str:
    """Returns what is kept of turns, and how to change that."""
    if settings.inspect_mode == "off":
        return "off; `--inspect memory` keeps turns for the page"
    memory = f"in memory, up to {settings.inspect_mib} MiB"
    if settings.inspect_mode == "store":
        return f"turns in the store, those with `store: false` {memory}; `--inspect off` keeps none"
    return f"turns {memory}; `--inspect off` keeps none"


def _curl_example(url: str, model: str, *, keyed: bool) -> str:
    key = ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' if keyed else ""
    body = f'{{"model": "{model}", "input": "Hello!"}}'
    return _show(f"curl {url}/responses -H 'Content-Type: application/json'{key} -d '{body}'")
