"""Terminal output for the operator: loading progress, the start-up banner, and the lines of the access log.

Everything is written to standard error, so that standard output stays free for pipes.
"""

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.status import Status
from rich.text import Text

from antiphon.app.model_registry import ModelRegistry
from antiphon.app.settings import WILDCARD_HOSTS, Settings

CODEX_CONFIG = """model = "{model}"
model_provider = "antiphon"
[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}"
wire_api = "responses\""""
CODEX_ENV_KEY = '\nenv_key = "ANTIPHON_API_KEY"'


def create_console() -> Console:
    """Returns a console on standard error; it writes plain text if that is not a terminal."""
    return Console(stderr=True, highlight=False)


class LoadingStatus:
    """Loading progress of a model: an animated line in a terminal, else one line per stage."""

    def __init__(self, screen: Console) -> None:
        self.screen, self._name = screen, ""
        self._status: Status | None = screen.status("")

    def __enter__(self) -> Self:
        return self

    def start(self, name: str) -> None:
        """Shows that `what` is being loaded."""
        self._name = escape(name)
        if self._status is not None:
            self._status.update(f"Loading {self._name} …")
            self._status.start()
        if not self.screen.is_terminal:
            self.screen.print(f"Loading {self._name} …", soft_wrap=True)

    def update(self, status: str) -> None:
        """Shows a status of the engine. After `stop` shows only `ready`; the engine's log has the others."""
        stage = status.removeprefix("loading").removeprefix(": ")
        if self._status is None:
            if status == "ready":
                self.screen.print("[dim]The engine is ready again.[/]", soft_wrap=True)
        elif self.screen.is_terminal:
            self._status.update(f"Loading {self._name} … [dim]{escape(stage)}[/]")
        elif stage and stage != "ready":
            self.screen.print(f"Loading {self._name}: {escape(stage)}", soft_wrap=True)

    def print_lines(self, lines: str) -> None:
        """Prints complete lines, unchanged."""
        if self._status is None:
            self.screen.file.write(lines)
            self.screen.file.flush()
        else:  # above the animated line
            self.screen.print(Text.from_ansi(lines), soft_wrap=True)

    def stop(self) -> None:
        """Ends the progress display."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __exit__(self, *_: object) -> None:
        self.stop()


def base_url(settings: Settings, port: int) -> str:
    """Returns the base URL for clients on this machine."""
    host = "127.0.0.1" if settings.host in WILDCARD_HOSTS else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def show_banner(
    screen: Console, settings: Settings, catalogue: ModelRegistry, port: int, notes: dict[str, str]
) -> None:
    """Prints the base URL, the models and examples to paste. `notes` maps a model's first name to an extra line."""
    url, model = base_url(settings, port), catalogue.served[0].names[0]
    rows = [f"[bold]base URL[/]  {escape(url)}"]
    for served in catalogue.served:
        info = served.engine.info
        parts = (info.description, info.device, info.dtype, f"context {info.max_model_len}")
        summary = " · ".join(part for part in parts if part not in ("", "none"))
        rows.append(f"[bold]model[/]     {escape(', '.join(served.names))}")
        rows.append(f"          {escape(summary)}")
        if note := notes.get(served.names[0]):
            rows.append(f"          {escape(note)}")
    location = "in memory, until the server exits" if settings.store_file is None else f"in {settings.store_file}"
    rows.append(f"[bold]responses[/] kept {escape(location)}")
    rows.append(f"[bold]API key[/]   {'required' if settings.api_key_digests else 'not required'}")
    screen.print(Panel("\n".join(rows), title="antiphon", title_align="left", expand=False))
    screen.print(
        "[bold]curl[/]", _curl_example(url, model, keyed=bool(settings.api_key_digests)), sep="\n", soft_wrap=True
    )
    screen.print("\n[bold]Codex[/], at the top of ~/.codex/config.toml", soft_wrap=True)
    codex = CODEX_CONFIG.format(model=model, url=url) + (CODEX_ENV_KEY if settings.api_key_digests else "")
    screen.print(escape(codex), soft_wrap=True)
    screen.print()


def _curl_example(url: str, model: str, *, keyed: bool) -> str:
    key = ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' if keyed else ""
    body = f'{{"model": "{model}", "input": "Hello!"}}'
    return escape(f"curl {url}/responses -H 'Content-Type: application/json'{key} -d '{body}'")
