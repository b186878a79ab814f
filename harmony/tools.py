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

LONGEST = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ODD = re.compile(r"[^A-Za-z0-9_-]")
Key = tuple[str | None, str]


class ToolError(ValueError):
    """An offer that cannot stand. `index` is the culprit's place in the request's list of tools."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


class Offered(Struct, frozen=True, kw_only=True):
    """A tool the model may call. The model says `flat`; the client knows it as `name` in `namespace`."""

    flat: str
    name: str
    namespace: str | None = None
    kind: Literal["function", "custom"] = "function"
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False
    format: TextFormat | GrammarFormat | None = None


Sent = tuple[Offered, str]
"""A call to be written: its tool, and its arguments as JSON, or a custom tool's text."""


class ToolTable:
    """The offered tools in the order of the request, and the two look-ups: by flat name, by name and namespace."""

    def __init__(self, offers: Sequence[Offered] = ()) -> None:
        self._by_flat: Mapping[str, Offered] = {offer.flat: offer for offer in offers}
        self._flat: Mapping[Key, str] = {(offer.namespace, offer.name): offer.flat for offer in offers}

    @classmethod
    def build(cls, tools: Sequence[FunctionTool | CustomTool | NamespaceTool]) -> "ToolTable":
        """Read a request's tools. Raises `ToolError` for a bad name or for two that the client cannot tell apart."""
        found: dict[Key, FunctionTool | CustomTool] = {}
        for index, tool in enumerate(tools):
            for key, leaf in _leaves(tool):
                _check(key, index, found)
                found[key] = leaf
        # Plain names are what the client wrote, so they have the first claim to themselves.
        claimed = {name for namespace, name in found if namespace is None and len(name) <= LONGEST}
        offers = []
        for (namespace, name), leaf in found.items():
            flat = _spell(namespace, name)
            if namespace is not None or flat != name:
                flat = _hashed(namespace, name) if flat in claimed else flat
                claimed.add(flat)
            offers.append(_offer(flat, namespace, leaf))
        return cls(offers)

    def find(self, flat: str) -> Offered | None:
        """The tool that goes by this flat name, or None: then what the model wrote is not a call."""
        return self._by_flat.get(flat)

    def flat(self, name: str, namespace: str | None = None) -> str:
        """The flat name of any tool, also of one that is no longer offered: earlier calls have to be shown."""
        known = self._flat.get((namespace, name))
        if known is not None:
            return known
        flat = _spell(namespace, name)
        return _hashed(namespace, name) if flat in self._by_flat else flat

    def __iter__(self) -> Iterator[Offered]:
        return iter(self._by_flat.values())

    def __len__(self) -> int:
        return len(self._by_flat)


def _leaves(tool: FunctionTool | CustomTool | NamespaceTool) -> Iterator[tuple[Key, FunctionTool | CustomTool]]:
    if isinstance(tool, NamespaceTool):
        yield from (((tool.name, leaf.name), leaf) for leaf in tool.tools)
    else:
        yield (None, tool.name), tool


def _check(key: Key, index: int, found: Mapping[Key, object]) -> None:
    namespace, name = key
    # Names are pasted raw into prompts: a newline in one would let a client write the frame.
    if not _NAME.fullmatch(name):
        raise ToolError(f"Invalid tool name {name[:80]!r}: letters, digits, '_' and '-', at most 128 of them.", index)
    if key in found:
        where = f" in namespace {namespace!r}" if namespace is not None else ""
        raise ToolError(f"Two tools are called {name!r}{where}.", index)


def _spell(namespace: str | None, name: str) -> str:
    flat = name if namespace is None else f"{namespace}__{name}"
    return flat if len(flat) <= LONGEST and not _ODD.search(flat) else _hashed(namespace, name)


def _hashed(namespace: str | None, name: str) -> str:
    """A name that fits and that nothing else has, the same in every turn: earlier calls must keep theirs."""
    digest = hashlib.sha256(f"{namespace}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = _ODD.sub("_", name if namespace is None else f"{namespace}__{name}")
    return f"{readable[: LONGEST - 9]}_{digest}"


def _offer(flat: str, namespace: str | None, tool: FunctionTool | CustomTool) -> Offered:
    description = tool.description or ""
    if isinstance(tool, CustomTool):
        return Offered(
            flat=flat, name=tool.name, namespace=namespace, kind="custom", description=description, format=tool.format
        )
    return Offered(
        flat=flat,
        name=tool.name,
        namespace=namespace,
        description=description,
        parameters=tool.parameters,
        strict=bool(tool.strict),
    )
