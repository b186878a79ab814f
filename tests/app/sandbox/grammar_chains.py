"""Grammars that are chains: their compiler calls itself once a link."""

import json
from typing import Any


def rule_chain(length: int) -> str:
    return "start: r0\n" + "\n".join(f'r{n}: "x" r{n + 1}' for n in range(length)) + f'\nr{length}: "y"\n'


def terminal_chain(length: int) -> str:
    return "start: T0\n" + "\n".join(f'T{n}: "x" T{n + 1}' for n in range(length)) + f'\nT{length}: "y"\n'


def reference_chain(length: int, *, nested: int = 0) -> str:
    """Returns a schema whose definitions form a chain, each `nested` objects below the one before."""
    definitions: dict[str, Any] = {f"d{length}": {"type": "string"}}
    for number in range(length):
        schema: dict[str, Any] = {"$ref": f"#/$defs/d{number + 1}"}
        for _ in range(nested):
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        definitions[f"d{number}"] = schema
    return json.dumps({"$ref": "#/$defs/d0", "$defs": definitions})
