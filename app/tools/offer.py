"""Puts the tools that the server runs, and its search among deferred tools, among those that the model is offered."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from antiphon.app.requests.constraints import find_schema_fault, list_constraints
from antiphon.app.requests.hosted_tools import HostedToolsRequest
from antiphon.app.requests.tool_choice import build_table, read_tool_choice
from antiphon.app.requests.tools import RequestTool, RequestTools
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.tool_search import DeferredUnit, SearchUnit, ToolSearch, describe_search, find_loaded_keys
from antiphon.harmony.tools import HostedTool, ToolKey, list_keys

PlacedTool = tuple[RequestTool | HostedTool, str]
"""A tool, and its path in the request."""


class ToolOffer(Struct, frozen=True):
    """A turn with the tools of the server in its prompt. `search` is None if nothing is deferred.

    `allowed_later` has the model names of the tools that may be called once a required call was made; None for all.
    """

    spec: TurnSpec
    allowed_later: frozenset[str] | None
    search: ToolSearch | None


async def offer_tools(
    spec: TurnSpec,
    request: HostedToolsRequest,
    offered: Sequence[PlacedTool],
    deferred: Sequence[DeferredUnit],
) -> ToolOffer:
    """Returns the turn with `offered` and with a search among `deferred`. Raises `ApiError` 400."""
    tools, units = _place_tools(spec, request, offered, deferred)
    choice = read_tool_choice(request.tool_choice, tools, single_call=request.single_call)
    prompt_input = structs.replace(
        spec.prompt_input, tools=choice.table, tool_choice=choice.mode, allowed_tools=choice.allowed_tools
    )
    if prompt_input.needs_grammar and any(isinstance(tool, HostedTool) for tool in tools.served):
        tools = await _open_schemas(tools)
        choice = read_tool_choice(request.tool_choice, tools, single_call=request.single_call)
        prompt_input = structs.replace(prompt_input, tools=choice.table)
    constraints = list_constraints(tools, prompt_input, schema_param="text.format.schema")
    search = None
    if units:
        all_tools = build_table(structs.replace(tools, hidden=frozenset()), single_call=request.single_call)
        search = ToolSearch([SearchUnit.of(unit) for unit in units], all_tools, tools.hidden)
    sent = request.tool_choice
    is_list = isinstance(sent, Mapping) and sent.get("type") == "allowed_tools"
    return ToolOffer(
        structs.replace(spec, prompt_input=prompt_input, constraints=constraints),
        choice.allowed_tools if is_list else None,
        search,
    )


def _place_tools(
    spec: TurnSpec,
    request: HostedToolsRequest,
    offered: Sequence[PlacedTool],
    deferred: Sequence[DeferredUnit],
) -> tuple[RequestTools, list[DeferredUnit]]:
    """Returns the tools with those of the server, and what a search can find.

    What `tool_choice` names is offered at once, because the model could not choose to search.
    """
    known = find_loaded_keys(spec.prompt_input.items)
    present = list_keys(request.client_tools.served)
    shown = (known.listed | _find_chosen(request, offered, deferred)) - present
    units = [unit for unit in deferred if shown.isdisjoint(unit.keys)]
    listed: list[PlacedTool] = [*offered]
    listed += [(tool, unit.path) for unit in deferred if unit not in units for tool in unit.tools]
    if units:
        search_path = next(each.path for each in request.requests if each.kind == "tool_search")
        listed.append((describe_search(units), search_path))
    loaded = [(tool, unit.path) for unit in units for tool in unit.tools]
    hidden = frozenset[ToolKey]().union(*(unit.keys for unit in units)) - known.loaded - present
    return structs.replace(_insert_tools(request.client_tools, listed, loaded), hidden=hidden), units


def _find_chosen(
    request: HostedToolsRequest, offered: Sequence[PlacedTool], deferred: Sequence[DeferredUnit]
) -> frozenset[ToolKey]:
    """Returns the deferred tools that `tool_choice` names. Raises `ApiError` 400."""
    if not deferred or not isinstance(request.tool_choice, Mapping):
        return frozenset()
    others = [(tool, unit.path) for unit in deferred for tool in unit.tools]
    tools = _insert_tools(request.client_tools, offered, others)
    names = read_tool_choice(request.tool_choice, tools).allowed_tools or frozenset()
    table = build_table(tools)
    return frozenset(key for unit in deferred for key in unit.keys if table.model_name_of(key[1], key[0]) in names)


def _insert_tools(
    client_tools: RequestTools, listed: Sequence[PlacedTool], loaded: Sequence[PlacedTool]
) -> RequestTools:
    """Returns the tools of the client with others. Those that the conversation has loaded stay the last ones."""
    end = len(client_tools.served) - client_tools.num_loaded
    others = [*listed, *loaded]
    return structs.replace(
        client_tools,
        served=(*client_tools.served[:end], *(tool for tool, _ in others), *client_tools.served[end:]),
        paths=(*client_tools.paths[:end], *(path for _, path in others), *client_tools.paths[end:]),
        num_loaded=client_tools.num_loaded + len(loaded),
    )


async def _open_schemas(tools: RequestTools) -> RequestTools:
    """Returns the tools, of which those with a schema that no grammar can hold take any object."""
    served = [await _open_schema(tool) if isinstance(tool, HostedTool) else tool for tool in tools.served]
    return structs.replace(tools, served=tuple(served))


async def _open_schema(tool: HostedTool) -> HostedTool:
    has_fault = await find_schema_fault(tool.parameters or {"type": "object"})
    return structs.replace(tool, can_enforce=False) if has_fault else tool
