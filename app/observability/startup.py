"""What a person reads in the terminal: how the model loads, where it is served, and one line a request.

Everything goes to standard error, so that standard output stays free for whoever pipes it.
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
    """The terminal, or plain text where there is none."""
    return Console(stderr=True, highlight=False)


class LoadingStatus:
    """A line that moves while a model loads and says how far it has come; where nothing can move, lines."""

    def __init__(self, screen: Console) -> None:
        self.screen, self._what = screen, ""
        self._status: Status | None = screen.status("")

    def __enter__(self) -> Self:
        return self

    def start(self, what: str) -> None:
        """It is this that is loaded."""
        self._what = escape(what)
        if self._status is not None:
            self._status.update(f"Loading {self._what} …")
            self._status.start()
        if not self.screen.is_terminal:
            self.screen.print(f"Loading {self._what} …", soft_wrap=True)

    def update(self, news: str) -> None:
        """A stage, as the engine calls it. Later news are in the engine's log, but for its return."""
        stage = news.removeprefix("loading").removeprefix(": ")
        if self._status is None:
            if news == "ready":
                self.screen.print("[dim]The engine is back.[/]", soft_wrap=True)
        elif self.screen.is_terminal:
            self._status.update(f"Loading {self._what} … [dim]{escape(stage)}[/]")
        elif stage and stage != "ready":
            self.screen.print(f"Loading {self._what}: {escape(stage)}", soft_wrap=True)

    def print_lines(self, lines: str) -> None:
        """Whole lines, as they are."""
        if self._status is None:
            self.screen.file.write(lines)
            self.screen.file.flush()
        else:  # above what moves
            self.screen.print(Text.from_ansi(lines), soft_wrap=True)

    def stop(self) -> None:
        """Nothing moves any more."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __exit__(self, *_: object) -> None:
        self.stop()


def base_url(settings: Settings, port: int) -> str:
    """What a client on this machine is to be given."""
    host = "127.0.0.1" if settings.host in WILDCARD_HOSTS else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def show_banner(
    screen: Console, settings: Settings, catalogue: ModelRegistry, port: int, notes: dict[str, str]
) -> None:
    """Base URL, models, device, and lines to paste. `notes` has a line for some models, by first name."""
    url, model = base_url(settings, port), catalogue.served[0].names[0]
    rows = [f"[bold]base URL[/]  {escape(url)}"]
    for served in catalogue.served:
        info = served.engine.info
        parts = (info.description, info.device, info.dtype, f"context {info.max_model_len}")
        about = " · ".join(part for part in parts if part not in ("", "none"))
        rows.append(f"[bold]model[/]     {escape(', '.join(served.names))}")
        rows.append(f"          {escape(about)}")
        if note := notes.get(served.names[0]):
            rows.append(f"          {escape(note)}")
    kept = "in memory, while the server lives" if settings.store_file is None else f"in {settings.store_file}"
    rows.append(f"[bold]responses[/] kept {escape(kept)}")
    rows.append(f"[bold]API key[/]   {'asked for' if settings.api_key_digests else 'none is asked for'}")
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
