"""Tool servers: what the operator's options say about them, and the limits that hold for all."""

import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct, json, structs

from antiphon.app.outbound.address import ClientAddress, parse_url

_SECRET_HEADER = re.compile("auth|cookie|credential|key|pass|secret|session|sign|token", re.IGNORECASE)
"""Names of headers that hold credentials. The values of others, such as names of teams, are ordinary words."""
LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
KIB = 1 << 10
MIB = 1 << 20


class ToolLimits(Struct, frozen=True, kw_only=True):
    """Limits on tool servers: time, size and number of what they send."""

    connect_timeout_s: float = 5
    """Time to open a connection."""
    list_timeout_s: float = 10
    """Time of a whole list."""
    call_timeout_s: float = 60
    """Time of one call. A server gives `tool_timeout_s` of its settings here."""
    start_timeout_s: float = 30
    """Time for a command to start and to negotiate the protocol. It comes before the time of a list or call."""
    cancel_grace_s: float = 1
    """Time in which an older server is told about a cancelled call, before its connection is closed."""
    max_parallel_calls: int = 4
    max_body_bytes: int = 4 * MIB
    """Of one HTTP body, and of one line of a command."""
    max_sse_event_bytes: int = MIB
    max_sse_lines: int = 8192
    """Of one answer. A message takes three, and each costs more time than its bytes."""
    max_resumptions: int = 8
    """How many times older servers may close the event stream of one call and have it resumed."""
    max_listed_tools: int = 128
    max_list_bytes: int = 256 * KIB
    max_list_pages: int = 20
    max_name_chars: int = 128
    max_schema_depth: int = 64
    list_ttl_s: float = 300
    """How long a list is kept if its server does not say so (`ttlMs`)."""
    max_list_ttl_s: float = 3600
    """How long a list is kept at most, whatever its server says."""
    max_kept_lists: int = 256
    max_output_bytes: int = 64 * KIB
    """Of the text of one result, in UTF-8."""
    max_structured_bytes: int = 256 * KIB
    """Structured content above this size is not kept beside the text."""
    max_links: int = 64


class ToolServer(Struct, frozen=True, kw_only=True):
    """A server of MCP tools. Its URL, command and headers may hold secrets: `repr` shows none of them."""

    label: str
    url: str = ""
    """The endpoint (Streamable HTTP). Empty if the server is a command."""
    command: tuple[str, ...] = ()
    """The command and its arguments (stdio)."""
    headers: tuple[tuple[str, str], ...] = ()
    is_operator: bool
    """The operator configured the server. The addresses of all other servers must be public."""
    is_loopback: bool = False
    """A client named a loopback host that the operator allows by name."""

    @property
    def identity(self) -> str:
        """A digest of where the server is and of what is sent to it. It reveals neither."""
        return sha256(
            json.encode((self.url, self.command, self.headers, self.is_operator, self.is_loopback))
        ).hexdigest()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials in headers that no text of the server may repeat: whole values, and tokens without "Bearer"."""
        values = [value for name, value in self.headers if _SECRET_HEADER.search(name)]
        tokens = [value.partition(" ")[2] for value in values if " " in value]
        return tuple(secret for secret in (*values, *tokens) if len(secret) >= MIN_SECRET_CHARS)

    def __repr__(self) -> str:
        return f"ToolServer(label={self.label!r}, is_operator={self.is_operator!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("label", self.label), ("is_operator", self.is_operator)]


MIN_SECRET_CHARS = 8
"""Shorter values are ordinary words: to remove them would damage the text."""


def create_client_server(label: str, address: ClientAddress, headers: tuple[tuple[str, str], ...]) -> ToolServer:
    """Creates the server that a client named, from what `check_client_url` and `check_client_headers` returned."""
    return ToolServer(label=label, url=address.url, headers=headers, is_operator=False, is_loopback=address.is_loopback)


def read_tool_servers(
    tool_servers: Sequence[str], keys: Sequence[str], commands: Sequence[str], environ: Mapping[str, str]
) -> dict[str, ToolServer]:
    """Reads the options `--tool-server`, `--tool-server-key` and `--tool-command`. Raises ValueError with one line."""
    servers: dict[str, ToolServer] = {}
    for option in tool_servers:
        label, url = _split_option("--tool-server", option, "URL", servers)
        try:
            address = parse_url(url)
        except ValueError as fault:
            raise ValueError(f"--tool-server {label}: {fault}") from None
        servers[label] = ToolServer(label=label, url=address.url, is_operator=True)
    for option in commands:
        label, line = _split_option("--tool-command", option, '"COMMAND ARGUMENTS"', servers)
        servers[label] = ToolServer(label=label, command=_split_command(label, line), is_operator=True)
    for option in keys:
        label, variable = _split_option("--tool-server-key", option, "VARIABLE", {})
        servers[label] = _add_key(servers.get(label), label, variable, environ)
    return servers


def _split_option(name: str, option: str, value: str, servers: Mapping[str, ToolServer]) -> tuple[str, str]:
    label, separator, text = option.partition("=")
    if not separator or not text.strip():
        raise ValueError(f"{name} needs LABEL={value}.")
    if not LABEL.fullmatch(label):
        raise ValueError(
            f"{name}: {label!r} is no label. Use a letter, then letters, digits, '_' and '-', at most 64 characters."
        )
    if label in servers:
        raise ValueError(f"{name}: there are two tool servers with the label {label!r}.")
    return label, text.strip()


def _split_command(label: str, line: str) -> tuple[str, ...]:
    try:
        command = tuple(shlex.split(line))
    except ValueError as fault:
        raise ValueError(f"--tool-command {label}: {fault}.") from None
    if not command or not command[0] or "\0" in line:
        raise ValueError(f"--tool-command {label} names no command.")
    return command


def _add_key(server: ToolServer | None, label: str, variable: str, environ: Mapping[str, str]) -> ToolServer:
    if server is None or not server.url:
        raise ValueError(f"--tool-server-key {label}: there is no --tool-server with this label.")
    if server.headers:
        raise ValueError(f"--tool-server-key {label} is given twice.")
    key = environ.get(variable, "")
    if not key:
        raise ValueError(f"--tool-server-key {label}: the environment variable {variable} is not set.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"--tool-server-key {label}: the value of {variable} cannot be sent in a header.")
    return structs.replace(server, headers=(("Authorization", f"Bearer {key}"),))
