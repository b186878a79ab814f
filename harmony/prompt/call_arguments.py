"""Reads the arguments of earlier calls as objects. Models write them, so a prompt cannot hold all of them as such.

Arguments that are no object, are nested too deeply, or have halves of surrogate pairs are shown as the text that the
model wrote. One call of this kind must not make its conversation unusable.
"""

import json
import re
from typing import Any

MAX_ARGUMENT_DEPTH = 64
"""Levels of values. Templates and dialects write arguments by recursion."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None if they are to be shown as text."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    may_be_deep = text.count("[") + text.count("{") > MAX_ARGUMENT_DEPTH
    if not isinstance(value, dict) or (may_be_deep and measure_depth(value) > MAX_ARGUMENT_DEPTH):
        return None
    has_surrogates = "\\u" in text and _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None
    return None if has_surrogates else value


def measure_depth(value: Any) -> int:
    """Returns how deep a JSON value is nested, without recursion."""
    depth, level = 0, [value]
    while level := [entry for entry in level if isinstance(entry, dict | list)]:
        depth += 1
        level = [child for entry in level for child in (entry.values() if isinstance(entry, dict) else entry)]
    return depth
