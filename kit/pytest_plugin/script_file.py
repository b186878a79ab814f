"""The script of a server, from what a test writes inline."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.kit.line_ends import escape_line_separators

Cases = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any] | str]
"""A TOML file, its content, its replies, or texts to reply with, one for each request."""


class CasesError(ValueError):
    """Raised for cases that no script can be made of."""


def find_script(cases: Cases, folder: Path, scratch: Path) -> Path:
    """Returns the file of a script. Inline cases are written to a file below `scratch`. Raises `CasesError`."""
    if isinstance(cases, str | os.PathLike):
        path = folder / Path(cases)
        if not path.is_file():
            raise CasesError(f"there is no file {path}")
        return path
    table = dict(cases) if isinstance(cases, Mapping) else {"reply": [*map(_complete_reply, cases, range(len(cases)))]}
    path = scratch / "cases.toml"
    path.write_text("".join(f"{_quote(key)} = {dump_value(value)}\n" for key, value in table.items()), encoding="utf-8")
    return path


def _complete_reply(reply: Mapping[str, Any] | str, index: int) -> dict[str, Any]:
    """Returns the reply with a name, and with a list as its output."""
    fields: dict[str, Any] = {"output": reply} if isinstance(reply, str) else dict(reply)
    fields.setdefault("name", f"reply {index + 1}")
    if isinstance(fields.get("output"), str):
        fields["output"] = [fields["output"]]
    return fields


def dump_value(value: Any) -> str:
    """Returns a value as TOML. Raises `CasesError` for one that TOML does not have."""
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        fields = (f"{_quote(key)} = {dump_value(inside)}" for key, inside in value.items() if inside is not None)
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(dump_value, value)) + "]"
    raise CasesError(f"a script cannot hold {value!r}")


def _quote(text: str) -> str:
    """Returns a TOML string. JSON's escapes are TOML's, and DEL is the one character that only TOML escapes."""
    return escape_line_separators(json.dumps(text, ensure_ascii=False)).replace("\x7f", "\\u007f")
