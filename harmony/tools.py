"""The tools of a turn, under the names by which a model may call them.

A dialect knows one flat list of names. A tool inside a namespace gets a flat name of its own; what the model then
writes is *looked up* here and never split, since a plain tool may well be called `a__b`. This module does not know
how a tool is shown to a model, nor what its arguments mean.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.events.inputs import CustomTool, FunctionTool, GrammarFormat, NamespaceTool, TextFormat

MAX_TOOL_NAME_CHARS = 64
_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_INVALID_CHARS = re.compile(r"[^A-Za-z0-9_-]")
INPUT = "input"
"""The member that holds a custom tool's text where a model writes JSON for it."""
ToolKey = tuple[str | None, str]


class ToolError(ValueError):
    """An offer that cannot stand. `index` is the culprit's place in the request's list of tools."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool the model may call. The model says `flat`; the client knows it as `name` in `namespace`."""

    model_name: str
    name: str
    namespace: str | None = None
    kind: Literal["function", "custom"] = "function"
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False
    format: TextFormat | GrammarFormat | None = None


ToolCall = tuple[ToolSpec, str]
"""A call to be written: its tool, and its arguments as JSON, or a custom tool's text."""


class ToolTable:
    """The offered tools in the order of the request, and the two look-ups: by flat name, by name and namespace."""

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self._by_model_name: Mapping[str, ToolSpec] = {offer.model_name: offer for offer in tools}
        self._model_names: Mapping[ToolKey, str] = {(offer.namespace, offer.name): offer.model_name for offer in tools}

    @classmethod
    def from_request(cls, tools: Sequence[FunctionTool | CustomTool | NamespaceTool]) -> "ToolTable":
        """Read a request's tools. Raises `ToolError` for a bad name or for two that the client cannot tell apart."""
        found: dict[ToolKey, FunctionTool | CustomTool] = {}
        for index, tool in enumerate(tools):
            for key, leaf in _functions(tool):
                _check_name(key, index, found)
                found[key] = leaf
        # Plain names are what the client wrote, so they have the first claim to themselves.
        claimed = {name for namespace, name in found if namespace is None and len(name) <= MAX_TOOL_NAME_CHARS}
        offers = []
        for (namespace, name), leaf in found.items():
            flat = _join_name(namespace, name)
            if namespace is not None or flat != name:
                flat = _hash_name(namespace, name) if flat in claimed else flat
                claimed.add(flat)
            offers.append(_create_spec(flat, namespace, leaf))
        return cls(offers)

    def find_tool(self, model_name: str) -> ToolSpec | None:
        """The tool that goes by this flat name, or None: then what the model wrote is not a call."""
        return self._by_model_name.get(model_name)

    def model_name_of(self, name: str, namespace: str | None = None) -> str:
        """The flat name of any tool, also of one that is no longer offered: earlier calls have to be shown."""
        known = self._model_names.get((namespace, name))
        if known is not None:
            return known
        flat = _join_name(namespace, name)
        return _hash_name(namespace, name) if flat in self._by_model_name else flat

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._by_model_name.values())

    def __len__(self) -> int:
        return len(self._by_model_name)


def _functions(tool: FunctionTool | CustomTool | NamespaceTool) -> Iterator[tuple[ToolKey, FunctionTool | CustomTool]]:
    if isinstance(tool, NamespaceTool):
        yield from (((tool.name, leaf.name), leaf) for leaf in tool.tools)
    else:
        yield (None, tool.name), tool


def _check_name(key: ToolKey, index: int, found: Mapping[ToolKey, object]) -> None:
    namespace, name = key
    # Names are pasted raw into prompts: a newline in one would let a client write the frame.
    if not _VALID_NAME.fullmatch(name):
        raise ToolError(f"Invalid tool name {name[:80]!r}: letters, digits, '_' and '-', at most 128 of them.", index)
    if key in found:
        where = f" in namespace {namespace!r}" if namespace is not None else ""
        raise ToolError(f"Two tools are called {name!r}{where}.", index)


def _join_name(namespace: str | None, name: str) -> str:
    flat = name if namespace is None else f"{namespace}__{name}"
    return flat if len(flat) <= MAX_TOOL_NAME_CHARS and not _INVALID_CHARS.search(flat) else _hash_name(namespace, name)


def _hash_name(namespace: str | None, name: str) -> str:
    """A name that fits and that nothing else has, the same in every turn: earlier calls must keep theirs."""
    digest = hashlib.sha256(f"{namespace}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = _INVALID_CHARS.sub("_", name if namespace is None else f"{namespace}__{name}")
    return f"{readable[: MAX_TOOL_NAME_CHARS - 9]}_{digest}"


def _create_spec(flat: str, namespace: str | None, tool: FunctionTool | CustomTool) -> ToolSpec:
    description = tool.description or ""
    if isinstance(tool, CustomTool):
        return ToolSpec(
            model_name=flat,
            name=tool.name,
            namespace=namespace,
            kind="custom",
            description=description,
            format=tool.format,
        )
    return ToolSpec(
        model_name=flat,
        name=tool.name,
        namespace=namespace,
        description=description,
        parameters=tool.parameters,
        strict=bool(tool.strict),
    )
