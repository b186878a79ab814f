"""Fields that events, items, parts and responses must have, and their types: the tables of `shapes.toml`."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import as_list, as_objects, as_text

Types = tuple[type | None, ...]
Shape = Mapping[str, Types]

_TYPES: dict[str, Types] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "null": (None,),
    "any": (),
}


def _read_shape(table: Mapping[str, str]) -> Shape:
    """Returns the fields of a table such as `{ in = "item", delta = "string|null" }`, those of its group among them."""
    group = _read_shape(_TABLES["group"][table["in"]]) if "in" in table else {}
    return {
        **group,
        **{
            field: tuple(kind for name in names.split("|") for kind in _TYPES[name])
            for field, names in table.items()
            if field != "in"
        },
    }


_TABLES = tomllib.loads(resources.files("antiphon.kit.checker").joinpath("shapes.toml").read_text(encoding="utf-8"))
EVENT_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["event"].items()}
ITEM_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["item"].items()}
PART_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["part"].items()}
DONE_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["done"].items()}
ACTION_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["action"].items()}
ENTRY_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["entry"].items()}
ANNOTATION_SHAPES = {kind: _read_shape(table) for kind, table in _TABLES["annotation"].items()}
RESPONSE_SHAPE = _read_shape(_TABLES["response"])
CHECKED_ID_PREFIXES: dict[str, str] = _TABLES["id_prefix"]
NULLABLE_KEYS = ("background", *(key for key, types in RESPONSE_SHAPE.items() if None in types))
"""Keys without which SDKs read null. Clients read through the other ones without a check. `background` came in 2025."""

OPEN_RESPONSES_NAMES = {
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}
"""Event types of the Open Responses specification that OpenAI's API spells otherwise."""

NEVER_NULL = ("phase", "encrypted_content", "content", "status", "namespace")
"""Optional keys of items. They are left out rather than null."""

EARLY_API_LACKS = {"response.output_text.delta": ("logprobs",), "response.output_text.done": ("logprobs",)}
"""Fields of events that streams of early 2025 do not have. They have no sequence numbers either."""


def has_type(value: object, types: Types) -> bool:
    """Returns whether a JSON value has one of the types. A boolean is no number."""
    if not types:
        return True
    if value is None:
        return None in types
    if isinstance(value, bool):
        return bool in types
    return any(kind is not None and isinstance(value, kind) for kind in types)


def check_shape(
    value: Mapping[str, Any], shape: Shape, name: str, findings: FindingList, optional: Sequence[str] = ()
) -> None:
    """Reports missing fields and fields of a wrong type of one event, item or part. `optional` ones may be missing."""
    for field, types in shape.items():
        if field not in value:
            code = "field-missing-early" if field in optional else "field-missing"
            findings.add(code, f"the field {field}", "no such field", f"{name}.{field}")
        elif not has_type(value[field], types):
            findings.add("field-type", _name_types(types), quote(value[field]), f"{name}.{field}")


def is_early_response(response: Mapping[str, Any]) -> bool:
    """Returns whether a Response has the form of early 2025, before background mode and service tiers."""
    return "background" not in response and "service_tier" not in response


def check_response_shape(response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports missing keys of a Response object, each kind as one finding, and each key of a wrong type."""
    missing = [key for key in RESPONSE_SHAPE if key not in response]
    for code, keys in (
        ("response-key-missing", [key for key in missing if key not in NULLABLE_KEYS]),
        ("response-key-absent", [key for key in missing if key in NULLABLE_KEYS]),
    ):
        if keys:
            findings.add(code, "every key of a Response", f"none of {', '.join(keys)}")
    for key, types in RESPONSE_SHAPE.items():
        if key in response and not has_type(response[key], types):
            findings.add("response-key-type", _name_types(types), quote(response[key]), f"response.{key}")
    if response.get("object", "response") != "response":
        findings.add("response-key-type", '"response"', quote(response["object"]), "response.object")
    if "output_text" in response:
        findings.add(
            "output-text-on-wire", "no key output_text", quote(response["output_text"]), "response.output_text"
        )


def check_item_shape(item: Mapping[str, Any], findings: FindingList) -> None:
    """Reports an unknown kind of item, missing fields, and optional keys that are null."""
    kind = item.get("type")
    if not isinstance(kind, str):
        findings.add("field-missing", "the field type", quote(kind), "item.type")
        return
    if kind not in ITEM_SHAPES and ":" not in kind:
        findings.add("item-type-unknown", "a kind of item that the API knows", quote(kind), kind)
    check_shape(item, ITEM_SHAPES.get(kind, {}), kind, findings)
    if kind == "message" and item.get("role", "assistant") != "assistant":
        findings.add("item-role", "assistant", quote(item["role"]), f"message {item.get('id')}")
    _check_id_prefix(kind, as_text(item.get("id")), findings)
    for key in NEVER_NULL:
        if key in item and item[key] is None:
            findings.add("optional-null", "the key to be left out", "null", f"{kind}.{key}")
    for part in [*as_list(item.get("content")), *as_list(item.get("summary"))]:
        if isinstance(part, dict):
            check_part_shape(part, findings)


def _check_id_prefix(kind: str, item_id: str, findings: FindingList) -> None:
    prefix, separator, _ = item_id.partition("_")
    owner = next((other for other, known in CHECKED_ID_PREFIXES.items() if known == prefix), kind)
    if separator and owner != kind and kind in CHECKED_ID_PREFIXES:
        expected = f"no prefix, or {CHECKED_ID_PREFIXES[kind]}_"
        findings.add("item-id-prefix", expected, f"{prefix}_, the prefix of a {owner}", f"{kind} {item_id}")


def check_part_shape(part: Mapping[str, Any], findings: FindingList) -> None:
    """Reports an unknown kind of part and missing fields."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in PART_SHAPES:
        findings.add("part-type", f"one of {', '.join(PART_SHAPES)}", quote(kind), f"part {kind}")
        return
    check_shape(part, PART_SHAPES[kind], kind, findings)
    for annotation in as_objects(part.get("annotations")):
        annotation_kind = as_text(annotation.get("type"))
        check_shape(annotation, ANNOTATION_SHAPES.get(annotation_kind, {"type": (str,)}), annotation_kind, findings)


def _name_types(types: Types) -> str:
    names = {types[-1]: name for name, types in _TYPES.items() if types}
    articles = {"null": "", "integer": "an ", "object": "an ", "array": "an "}
    return " or ".join(articles.get(names[kind], "a ") + names[kind] for kind in types)
