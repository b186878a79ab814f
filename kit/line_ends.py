"""Characters that some readers take for the end of a line: Python's `splitlines` and `iter_lines` of httpx do."""

import re

LINE_SEPARATORS = "\x85\u2028\u2029"
"""Unicode's line ends that JSON and TOML leave as they are."""
_SEPARATOR = re.compile(f"[{LINE_SEPARATORS}]")


def escape_line_separators(text: str) -> str:
    r"""Returns JSON, or TOML between double quotes, of the same value, in which these characters are escapes."""
    return _SEPARATOR.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
