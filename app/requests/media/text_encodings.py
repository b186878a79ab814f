"""Encodings of text files: a byte order mark, UTF-8, a declared charset, and what is assumed without these. Pure.

An assumption is made only where a wrong one would show: text in another encoding gives symbols inside words, control
characters or no kana. Any other file is refused, since wrong characters would mislead the model in silence.
"""

import codecs
import re
import unicodedata

from msgspec import Struct

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks. That of UTF-32 begins with that of UTF-16."""
_DECLARED = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "shift_jis": "cp932", "euc_kr": "cp949",
    "gb2312": "gb18030", "gbk": "gb18030", "tis-620": "cp874",
}  # fmt: skip
"""Encodings that are read as larger ones that hold them, as browsers do."""
_LABELS = {
    "windows-31j": "cp932", "x-sjis": "cp932", "x-euc-jp": "euc_jp", "x-gbk": "gb18030", "iso-8859-8-i": "iso8859-8",
}  # fmt: skip
"""Names of the web that Python does not know."""
_READ = frozenset(
    """utf-8 utf-16 utf-16-le utf-16-be utf-32 utf-32-le utf-32-be cp932 euc_jp iso2022_jp gb18030 big5 big5hkscs cp949
    koi8-r koi8-u cp437 cp850 cp852 cp866 cp874 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258
    mac-roman mac-cyrillic iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 iso8859-10 iso8859-13
    iso8859-14 iso8859-15 iso8859-16""".split()
)
"""Names of Python's codecs that decode text, and nothing else."""
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ue000-\uf8ff]")
_HIGH_RUN = re.compile(rb"[\x80-\xff]{4}")
_KANA, _HALF_WIDTH = re.compile("[\u3041-\u30ff]"), re.compile("[\uff61-\uff9f]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_IN_WORDS = frozenset("\u2019\u2013\u2014\xb7\xad-")
MIN_KANA_SHARE = 0.1
"""Part of the characters outside ASCII, in a Japanese text."""
MAX_LETTER_SHARE = 0.4
"""Part of the characters that are letters outside ASCII, in a short text of Western Europe."""
MIN_UNITS = 4
"""Code units of UTF-16 that are enough to tell it from other content."""
MIN_ZERO_SHARE = 0.4
"""Part of the code units whose high byte is zero, in UTF-16."""


class DecodedText(Struct, frozen=True):
    """The text of a file. `encoding` is its name if it was assumed, and else empty."""

    text: str
    encoding: str = ""


def decode_bytes(data: bytes, charset: str = "") -> DecodedText | None:
    """Returns the text of a file without a byte order mark; None for other content. `charset`: as it was declared."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode(data[len(mark) :], encoding)
    declared = _find_codec(charset)
    if declared == "iso2022_jp" and b"\x1b" in data:  # its bytes are those of ASCII
        return _decode(data, declared)
    found = _decode(data, "utf-8")
    if found is None and charset:
        return _decode(data, declared) if declared else None
    return found or _assume_utf_16(data) or _assume_japanese(data) or _assume_western(data)


def _find_codec(charset: str) -> str:
    """Returns the codec of a declared charset; empty if it is unknown or decodes other things than text."""
    try:
        name = codecs.lookup(_LABELS.get(charset.lower(), charset)).name if charset else ""
    except (LookupError, ValueError):
        return ""
    name = _DECLARED.get(name, name)
    return name if name in _READ else ""


def _decode(data: bytes, encoding: str, assumed: str = "") -> DecodedText | None:
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, ValueError):
        return None
    return None if "\0" in text else DecodedText(text, assumed)


def _assume_utf_16(data: bytes) -> DecodedText | None:
    num_units = len(data) // 2
    if len(data) % 2 or num_units < MIN_UNITS:
        return None
    for encoding, high, low in (("utf-16-le", data[1::2], data[0::2]), ("utf-16-be", data[0::2], data[1::2])):
        if high.count(0) >= MIN_ZERO_SHARE * num_units and not low.count(0):
            return _without_controls(_decode(data, encoding, encoding))
    return None


def _assume_japanese(data: bytes) -> DecodedText | None:
    for encoding, name in (("cp932", "shift_jis"), ("euc_jp", "euc-jp")):
        found = _without_controls(_decode(data, encoding, name))
        if found is None:
            continue
        num_kana, num_half = len(_KANA.findall(found.text)), len(_HALF_WIDTH.findall(found.text))
        if num_kana >= MIN_KANA_SHARE * len(_NOT_ASCII.findall(found.text)) and num_half < num_kana:
            return found
    return None


def _assume_western(data: bytes) -> DecodedText | None:
    found = _without_controls(_decode(data, "cp1252", "windows-1252"))
    if found is None or _HIGH_RUN.search(data):
        return None
    text = found.text
    letters = 0
    for match in _NOT_ASCII.finditer(text):
        char, before, after = match[0], text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        is_letter = unicodedata.category(char)[0] == "L"
        letters += is_letter
        if not is_letter and before.isalpha() and after.isalpha() and char not in _IN_WORDS:
            return None
    return found if letters <= MAX_LETTER_SHARE * len(text) else None


def _without_controls(found: DecodedText | None) -> DecodedText | None:
    return None if found is None or _CONTROL_CHARS.search(found.text) else found
