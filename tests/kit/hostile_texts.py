"""Texts by which a server, a file or a client attacks the terminal that shows them, and the check of what is shown."""

import re

HOSTILE_TEXTS = {
    "clear": "x\x1b[2J\x1b[Hx",
    "title": "x\x1b]0;owned\x07x",
    "link": "x\x1b]8;;http://evil.example/\x1b\\bank\x1b]8;;\x1b\\x",
    "clipboard": "x\x1b]52;c;b3duZWQ=\x07x",
    "request": "x\x1bP$qm\x1b\\\x1b[6nx",
    "color": "x\x1b[31mx",
    "c1": "x\x9b2J\x9d0;owned\x9cx\x85",
    "bidi": "x\u202egnp.exe\u2066x\u2069\u200f",
    "zero-width": "pay\u200bpal\ufeff\u2060\U000e0041",
    "overwrite": "harmless\rOVERWRITTEN",
    "backspace": "x\x08\x08\x7fx",
    "bell": "x\x07\x07x",
    "lines": "x\u2028x\u2029x\x0bx\x0cx",
    "nul": "x\x00x",
    "long": "L" * 1_000_000,
}
"""Attacks by name: escape sequences in their 7-bit and 8-bit forms, hidden and reordered text, and one endless line."""
UNPAIRED_SURROGATE = "x\ud83dx"
"""No part of UTF-8: it arrives as an escape of JSON."""
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e0fff]"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def find_terminal_controls(text: str) -> list[str]:
    """Returns the characters of a text that a terminal obeys or hides, but for line feed and tab."""
    return _CONTROLS.findall(text)


def find_foreign_controls(output: bytes) -> list[str]:
    """Returns the same of bytes that reached a terminal, but for colours and the CR that it puts before a line feed."""
    text = output.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    return find_terminal_controls(_COLOR.sub("", text))
