"""Reads the tools of a chat request that the server runs. They have the flat form of Responses."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins

from antiphon.app.errors import invalid_value, unsupported_field
from antiphon.app.options.settings import Settings
from antiphon.app.requests.chat.body import ChatBody, WebSearchOptions
from antiphon.app.requests.hosted_tools import (
    HostedToolRequest,
    HostedToolsRequest,
    join_requests,
    list_hosted_types,
    read_tool_requests,
)
from antiphon.app.requests.tools import RequestTools
from antiphon.events.tools import WEB_SEARCH_TYPES


class OfferedTools(Struct, frozen=True):
    """The tools of a chat request. `choice` is in the flat form of Responses."""

    tools: RequestTools
    choice: Any
    as_functions: bool
    """True if they were sent as the deprecated `functions`."""
    single_call: bool


def read_hosted_tools(
    body: ChatBody, sent: Mapping[str, Any], offered: OfferedTools, settings: Settings
) -> HostedToolsRequest | None:
    """Returns the tools that the server runs; None if there are none. `sent` has their credentials.

    Raises `ApiError` 400, also for tools whose effects would be in a choice that is not returned.
    """
    requests = read_tool_requests(sent["tools"], can_ask=False) if body.tools else []
    if body.web_search_options is not None:
        if "web_search" not in list_hosted_types(settings):
            raise unsupported_field("web_search_options", "Web search is not supported.")
        if any(request.kind in WEB_SEARCH_TYPES for request in requests):
            message = "Send either 'web_search_options' or a tool of type 'web_search', not both."
            raise invalid_value("web_search_options", message)
        tool = _flatten_search_options(body.web_search_options)
        requests.append(HostedToolRequest(path="web_search_options", kind="web_search", tool=tool, can_ask=False))
    if requests and (body.best_of or 1) > (body.n or 1):
        message = "Invalid 'best_of': tools that the server runs would also run for choices that are not returned."
        raise invalid_value("best_of", message)
    return join_requests(requests, offered.tools, offered.choice, single_call=offered.single_call)


def _flatten_search_options(options: WebSearchOptions) -> dict[str, Any]:
    """Returns the options as a tool of Responses."""
    tool: dict[str, Any] = {"type": "web_search", "search_context_size": options.search_context_size}
    if options.user_location is not None:
        tool["user_location"] = {"type": "approximate", **to_builtins(options.user_location.approximate)}
    return tool
