"""Text from others, made safe for a terminal: characters that it obeys or hides become visible pictures.

Servers, files and clients can put escape sequences into every text. A terminal that receives them clears its screen,
writes to the clipboard, shows a link under a false name or answers as if the user had typed. Every text that this
project prints and has not written itself passes one of these functions. They know nothing of colours: a view adds its
own afterwards.
"""

import re

MAX_LINE_CHARS = 2000
"""Characters of a text in one line: enough for a sentence with a quotation, too few to fill a terminal's history."""
INVISIBLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, marks of direction, fillers
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width, separators of lines, changes of direction, isolates
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"  # fillers, unpaired surrogates, byte order mark, annotations
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # formats of shorthand and music, tags
)
"""Characters that a terminal obeys or does not show, as a class of a regular expression.

Variation selectors (U+FE00 to U+FE0F) are not among them: they choose the form of an emoji.
"""
_UNSAFE = re.compile(f"[{INVISIBLE}]")
_UNSAFE_IN_LINE = re.compile(f"[{INVISIBLE}\n]")
_FIRST_CONTROL_PICTURE, _DELETE_PICTURE = 0x2400, "\u2421"
_FIRST_BYTE_SURROGATE = 0xDC00
"""Code point that the error handler `surrogateescape` adds to an invalid byte."""


def show_controls(text: str | bytes) -> str:
    """Returns a text for a terminal. Line feeds and tabs stay; ESC becomes ␛, U+202E ⟨U+202E⟩, an invalid byte ⟨0x9B⟩.

    Bytes are read as UTF-8. The result can be encoded as UTF-8, whatever surrogates the text has.
    """
    if isinstance(text, bytes):
        return _UNSAFE.sub(_draw_byte, text.decode(errors="surrogateescape"))
    return _UNSAFE.sub(_draw_character, text)


def show_line(text: str | bytes, max_chars: int = MAX_LINE_CHARS) -> str:
    """Returns a text as one line of at most `max_chars` characters: line feeds become ␊, too. A cut one ends in `…`."""
    if isinstance(text, bytes):
        # A character has at most 4 bytes: a long body is not decoded as a whole.
        shown = _UNSAFE_IN_LINE.sub(_draw_byte, text[: 4 * (max_chars + 1)].decode(errors="surrogateescape"))
    else:
        shown = _UNSAFE_IN_LINE.sub(_draw_character, text[: max_chars + 1])
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


def escape_json(text: str) -> str:
    r"""Returns a JSON text of the same value, whose unsafe characters are escapes such as `\u202e`.

    The text is the output of a serializer: its C0 controls are the white space between values.
    """
    return _UNSAFE.sub(_escape_character, text)


def _draw_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_FIRST_CONTROL_PICTURE + code)
    return _DELETE_PICTURE if code == 0x7F else f"⟨U+{code:04X}⟩"


def _draw_byte(match: re.Match[str]) -> str:
    """Draws a character of decoded bytes, in which every surrogate stands for an invalid byte."""
    code = ord(match[0])
    is_byte = 0xD800 <= code <= 0xDFFF
    return f"⟨0x{code - _FIRST_BYTE_SURROGATE:02X}⟩" if is_byte else _draw_character(match)


def _escape_character(match: re.Match[str]) -> str:
    # JSON writes characters beyond U+FFFF as two surrogates.
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
