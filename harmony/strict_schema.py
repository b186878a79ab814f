"""Closes the objects of a JSON Schema: an object has only the properties that its schema declares.

JSON Schema allows any other property unless `additionalProperties` forbids it. In constrained output this lets a weak
model add keys until the token limit. Like other servers (vLLM with its grammar libraries, llama.cpp), this one takes
`properties` for a complete list. A schema that speaks about other properties, or declares none, keeps its meaning.

Several schemas may apply to one object: `allOf`, `anyOf`, `oneOf`, `$ref` and their siblings. Such an object may have
the properties of all of them, so none of them can be closed alone: a further part of `allOf` lists all names, or each
branch of `anyOf` lists its own and those around it.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

MAX_SCHEMA_STEPS = 50_000
"""Schemas and names to look at in one schema: some tens of milliseconds. A schema that takes more is not closed."""

_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_OR_LIST = ("items", "prefixItems", "additionalItems", "additionalProperties")
_BRANCHES = ("anyOf", "oneOf")
_PARTS = ("$ref", "allOf", *_BRANCHES)
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
_APPLIED_KEYWORDS = {*_PARTS, *_OPEN_KEYWORDS, "properties", "required"}
"""Keywords that apply to an object or to its properties."""

Schema = Mapping[str, Any]


class _CannotCloseError(Exception):
    """Raised for a schema that is malformed, too large, or has references that are not pointers into it."""


class _Members(Struct):
    """The rules for the properties of one object, from all schemas that apply to it."""

    names: dict[str, None]
    """Names in the order of their declaration; the values are unused."""
    compound_names: frozenset[str] = frozenset()
    """Names of properties whose values may be objects or arrays of objects."""
    is_declared: bool = False
    """True if one of the schemas has `properties`."""
    is_settled: bool = False
    """True if one of the schemas says which other properties are allowed."""

    def combine(self, other: "_Members") -> "_Members":
        """Returns the members of an object to which both apply.

        Raises `_CannotCloseError` if both describe the same object inside it: it would be closed twice.
        """
        if self.compound_names & other.compound_names:
            raise _CannotCloseError
        return _Members(
            {**self.names, **other.names},
            self.compound_names | other.compound_names,
            self.is_declared or other.is_declared,
            self.is_settled or other.is_settled,
        )

    def closing_schema(self) -> dict[str, Any]:
        return {"properties": {name: {} for name in self.names}, "additionalProperties": False}


def close_objects(schema: Schema) -> Schema:
    """Returns the schema with closed objects; the schema itself if it cannot be closed."""
    try:
        return _Closer(schema).close_root()
    except (_CannotCloseError, RecursionError):
        return schema


class _Closer:
    """Closes the objects of one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._new_definitions: dict[str, Any] = {}
        self._new_names: dict[tuple[str, tuple[str, ...] | None], str] = {}
        self._steps = 0

    def close_root(self) -> Schema:
        closed: dict[str, Any] = self._close(self._root, _Members({}))
        if self._new_definitions:
            closed["$defs"] = {**closed.get("$defs", {}), **self._new_definitions}
        return closed

    def _close(self, schema: Any, outer: _Members) -> Any:
        """Closes the objects that a schema describes. `outer`: what schemas around it say about the same object."""
        if schema is True and outer.is_declared:
            schema = {}
        if not isinstance(schema, Mapping):
            return schema
        result = self._convert_values(schema)
        around = self._collect(schema, with_branches=False)
        branches = [keyword for keyword in _BRANCHES if keyword in schema]
        if not around.is_settled:
            result.pop("unevaluatedProperties", None)  # false; the grammar library does not know it
        if around.is_settled:
            self._open_parts(schema, result)
        elif len(branches) == 1:
            self._open_parts(schema, result, "$ref", "allOf")
            parts = _list_parts(schema, branches[0])
            members = outer.combine(around)
            self._count_steps(len(members.names) * len(parts))
            result[branches[0]] = [self._close(part, members) for part in parts]
        elif _APPLIED_KEYWORDS & schema.keys() == {"$ref"}:
            result["$ref"] = self._close_reference(schema["$ref"], outer)
        elif _APPLIED_KEYWORDS & schema.keys() == {"allOf"} and len(schema["allOf"]) == 1:
            result["allOf"] = [self._close(schema["allOf"][0], outer)]
        elif _may_be_object(schema):
            self._close_here(schema, result, outer)
        return result

    def _close_here(self, schema: Schema, result: dict[str, Any], outer: _Members) -> None:
        """Closes one object, whichever of its branches is taken."""
        members = outer.combine(self._collect(schema))
        self._open_parts(schema, result)
        if members.is_settled or not members.is_declared:
            return
        self._count_steps(len(members.names))
        if any(keyword in schema for keyword in _PARTS):
            result["allOf"] = [*result.get("allOf", ()), members.closing_schema()]
        else:
            properties = result.get("properties", {})
            result["properties"] = {**properties, **{name: {} for name in members.names if name not in properties}}
            result["additionalProperties"] = False

    def _convert_values(self, schema: Schema) -> dict[str, Any]:
        """Closes the schemas of an object's properties and of an array's items, and the definitions."""
        self._count_steps(1)
        if schema is not self._root and "$id" in schema:
            raise _CannotCloseError  # references in it begin there
        result = dict(schema)
        for keyword in _NAMED_SCHEMAS:
            if keyword in schema:
                named = _require(schema[keyword], Mapping)
                result[keyword] = {name: self._close(part, _Members({})) for name, part in named.items()}
        for keyword in _SCHEMA_OR_LIST:
            value = schema.get(keyword)
            if isinstance(value, list):
                result[keyword] = [self._close(part, _Members({})) for part in value]
            elif isinstance(value, Mapping):
                result[keyword] = self._close(value, _Members({}))
        return result

    def _open_parts(self, schema: Schema, result: dict[str, Any], *keywords: str) -> None:
        """Converts the parts that apply to the same object without closing the object itself."""
        for keyword in keywords or _PARTS:
            if keyword == "$ref" and "$ref" in schema:
                result["$ref"] = self._open_reference(schema["$ref"])
            elif keyword in schema:
                result[keyword] = [self._convert_open(part) for part in _list_parts(schema, keyword)]

    def _convert_open(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        result = self._convert_values(schema)
        self._open_parts(schema, result)
        return result

    def _open_reference(self, reference: object) -> str:
        """Returns a reference to a copy of a definition, whose object is open."""
        return self._define(reference, None)

    def _close_reference(self, reference: object, outer: _Members) -> object:
        """Returns a reference to a copy of a definition, whose object may also have the members of `outer`."""
        return self._define(reference, outer) if outer.names else reference

    def _define(self, reference: object, outer: _Members | None) -> str:
        target = self._resolve(reference)
        key = (str(reference), None if outer is None else (str(outer.is_declared), *outer.names))
        name = self._new_names.get(key)
        if name is None:
            taken = {*_require(self._root.get("$defs", {}), Mapping), *self._new_names.values()}
            self._count_steps(len(taken))
            name = next(name for n in range(len(taken) + 1) if (name := f"part{n}") not in taken)
            self._new_names[key] = name
            self._new_definitions[name] = self._convert_open(target) if outer is None else self._close(target, outer)
        elif outer is None and name not in self._new_definitions:
            raise _CannotCloseError  # the grammar library allows nothing beside a reference that leads back to itself
        return f"#/$defs/{name}"

    def _collect(self, schema: Any, seen: set[str] | None = None, *, with_branches: bool = True) -> _Members:
        """Collects what a schema and its parts say about an object. `seen`: references that have been followed."""
        self._count_steps(1)
        if not isinstance(schema, Mapping):
            return _Members({})
        seen = set() if seen is None else seen
        members = _own_members(schema)
        if "$ref" in schema and (reference := str(schema["$ref"])) not in seen:
            seen.add(reference)
            members = members.combine(self._collect(self._resolve(reference), seen))
        for part in _list_parts(schema, "allOf"):
            members = members.combine(self._collect(part, seen))
        for keyword in _BRANCHES if with_branches else ():
            for branch in [self._collect(part, seen) for part in _list_parts(schema, keyword)]:
                # Branches exclude each other, so they may describe the same property.
                combined = members.combine(branch)
                members = msgspec.structs.replace(combined, compound_names=members.compound_names)
        self._count_steps(len(members.names))
        return members

    def _resolve(self, reference: object) -> object:
        """Returns what a JSON pointer into the schema refers to."""
        text = str(reference)
        if text != "#" and not text.startswith("#/"):
            raise _CannotCloseError
        node: Any = self._root
        for step in text.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, Mapping) and key in node:
                node = node[key]
            else:
                raise _CannotCloseError
        return node

    def _count_steps(self, count: int) -> None:
        self._steps += count
        if self._steps > MAX_SCHEMA_STEPS:
            raise _CannotCloseError


def _own_members(schema: Schema) -> _Members:
    properties = _require(schema.get("properties", {}), Mapping)
    required = _require(schema.get("required", []), list)
    return _Members(
        dict.fromkeys([*properties, *(name for name in required if isinstance(name, str))]),
        frozenset(name for name, part in properties.items() if _is_compound(part)),
        is_declared="properties" in schema or schema.get("unevaluatedProperties") is False,
        is_settled=any(keyword in schema for keyword in _OPEN_KEYWORDS) and not _only_closes(schema),
    )


def _is_compound(schema: object) -> bool:
    """Tells whether a value may be an object, or an array of objects, with properties of its own."""
    return isinstance(schema, Mapping) and any(keyword in schema for keyword in (*_APPLIED_KEYWORDS, *_SCHEMA_OR_LIST))


def _only_closes(schema: Schema) -> bool:
    """Tells whether a schema closes its object with `unevaluatedProperties`, as this module does."""
    return schema.get("unevaluatedProperties") is False and not any(
        keyword in schema for keyword in _OPEN_KEYWORDS if keyword != "unevaluatedProperties"
    )


def _may_be_object(schema: Schema) -> bool:
    declared = schema.get("type", "object")
    return "object" in declared if isinstance(declared, list) else declared == "object"


def _list_parts(schema: Schema, keyword: str) -> list[Any]:
    return list(_require(schema.get(keyword, []), list))


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _CannotCloseError
    return value
