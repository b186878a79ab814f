"""Options for tools: the operator's tool servers, and what runs the tools that clients name by type."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.app.options.settings import Settings
from antiphon.app.tools.code.code_runner import check_extra as check_code_extra
from antiphon.app.tools.mcp.client_server import create_client_policy
from antiphon.app.tools.mcp.tool_server import ToolServer, read_tool_servers
from antiphon.app.tools.mcp.tool_servers import check_extra
from antiphon.app.tools.search.file_index import check_fts5
from antiphon.app.tools.search.file_search import read_vector_stores

MAPPED_TYPES = ("web_search", "open_page", "code_interpreter")
"""Types that `--hosted` can map. `open_page` belongs to web searches: it reads a page that was found."""
SANDBOX = "monty"
"""Name of this server's own sandbox for code."""


class ToolTarget(Struct, frozen=True):
    """The tool of a tool server. `argument` is the name of its argument; empty: its schema tells."""

    label: str
    name: str
    argument: str = ""


class HostedOptions(Struct, frozen=True, kw_only=True):
    """The options of tools that clients name by type."""

    web_search: ToolTarget | None = None
    open_page: ToolTarget | None = None
    code_interpreter: ToolTarget | None = None
    has_sandbox: bool = False
    """True if this server runs code itself."""
    is_search_offline: bool = False
    """True if web searches read nothing from the web, so that requests may have them which forbid that."""
    vector_stores: dict[str, Path] = {}


def read_hosted_options(
    hosted: Sequence[str], offline: Sequence[str], vector_stores: Sequence[str], labels: Collection[str]
) -> HostedOptions:
    """Reads the options `--hosted`, `--hosted-offline` and `--vector-store`. Raises `ValueError` with one line.

    `labels` are those of the tool servers.
    """
    targets: dict[str, ToolTarget | None] = {}
    for option in hosted:
        kind, separator, target = option.partition("=")
        if kind not in MAPPED_TYPES or not separator:
            forms = f"TYPE=LABEL/TOOL, or code_interpreter={SANDBOX}; TYPE is one of {', '.join(MAPPED_TYPES)}"
            raise ValueError(f"--hosted {option}: write {forms}.")
        if kind in targets:
            raise ValueError(f"--hosted: {kind} is mapped twice.")
        is_sandbox = kind == "code_interpreter" and target == SANDBOX
        targets[kind] = None if is_sandbox else _read_target(option, target, labels)
    if "open_page" in targets and "web_search" not in targets:
        raise ValueError("--hosted open_page needs --hosted web_search.")
    for kind in offline:
        if kind != "web_search" or kind not in targets:
            raise ValueError(f"--hosted-offline {kind}: only a web_search that --hosted maps can be offline.")
    stores = read_vector_stores(vector_stores)
    if stores:
        check_fts5()
    return HostedOptions(
        web_search=targets.get("web_search"),
        open_page=targets.get("open_page"),
        code_interpreter=targets.get("code_interpreter"),
        has_sandbox="code_interpreter" in targets and targets["code_interpreter"] is None,
        is_search_offline="web_search" in offline,
        vector_stores=stores,
    )


def _read_target(option: str, text: str, labels: Collection[str]) -> ToolTarget:
    path, _, query = text.partition("?")
    label, separator, name = path.partition("/")
    key, _, argument = query.partition("=")
    if not separator or not name or (query and (key != "query" or not argument)):
        raise ValueError(f"--hosted {option}: write LABEL/TOOL, or LABEL/TOOL?query=ARGUMENT.")
    if label not in labels:
        raise ValueError(f"--hosted {option}: there is no tool server with the label {label!r}.")
    return ToolTarget(label, name, argument)


class ToolOptionError(Exception):
    """The options name tool servers that cannot be used. The message is one line."""


def check_tool_options(settings: Settings) -> None:
    """Raises `ToolOptionError` if the options for tools cannot be used. Call it before a model is loaded."""
    read_tool_options(settings)


def read_tool_options(settings: Settings) -> tuple[dict[str, ToolServer], HostedOptions]:
    """Returns the tool servers by label, and what clients may name by type. Raises `ToolOptionError`."""
    try:
        servers = read_tool_servers(
            settings.tool_servers, settings.tool_server_keys, settings.tool_commands, os.environ
        )
        for label in settings.tool_approvals:
            if label not in servers:
                raise ToolOptionError(f"--tool-approve: there is no tool server with the label {label!r}.")
        if servers or settings.mcp_allowed_hosts:
            check_extra()
        create_client_policy(settings.mcp_allowed_hosts)
        options = read_hosted_options(settings.hosted_tools, settings.hosted_offline, settings.vector_stores, servers)
        if options.has_sandbox:
            check_code_extra()
    except (ValueError, RuntimeError) as error:
        raise ToolOptionError(str(error)) from None
    return servers, options
