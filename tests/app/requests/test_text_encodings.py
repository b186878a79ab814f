"""Encodings of text files: what is declared is read, what is certain is assumed and told, and all else is refused."""

import pytest

from antiphon.app.media.file_text import decode_text, format_text_file
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.requests.media.text_encodings import DecodedText, decode_bytes

GERMAN = "Die Größe der Bäume wächst über die Jahre; „schön“ – 5 € für Müller’s Äpfel.\n"
FRENCH = "L’été dernier, « ça » coûtait 3 € à Orléans : très cher, même trop.\n"
JAPANESE = "これは日本語のテキストです。カタカナも漢字も読めます。\nABC 123\n"
POLISH = "Zażółć gęślą jaźń, a potem wróć do domu i śpij.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок.\n"
CHINESE = "这是一个中文文本文件，里面没有假名。\n"
KOREAN = "이것은 한국어 텍스트입니다.\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", [GERMAN, JAPANESE, CHINESE, ""])
def test_byte_order_mark_decides(encoding: str, text: str) -> None:
    assert decode_bytes(text.encode(encoding), "koi8-r") == DecodedText(text)
    for name in ("utf-16-le", "utf-16-be"):
        assert decode_bytes("\ufeff".encode(name) + text.encode(name)) == DecodedText(text)


@pytest.mark.parametrize(
    ("text", "encoding", "assumed"),
    [
        (GERMAN, "cp1252", "windows-1252"),
        (FRENCH, "cp1252", "windows-1252"),
        ("Grüße aus Köln, à bientôt, ¿qué tal?", "latin-1", "windows-1252"),
        (JAPANESE, "shift_jis", "shift_jis"),
        (JAPANESE, "euc_jp", "euc-jp"),
        ("name,city\nA,Oslo\n", "utf-16-le", "utf-16-le"),
        ("name,city\nA,Zürich\n", "utf-16-be", "utf-16-be"),
    ],
)
def test_what_is_assumed_is_told_in_the_prompt(text: str, encoding: str, assumed: str) -> None:
    decoded = decode_bytes(text.encode(encoding))
    assert decoded == DecodedText(text, assumed)
    shown = format_text_file("a.txt", decoded)
    assert shown == f'<file name="a.txt" encoding="{assumed} (assumed)">\n{text}\n</file>'
    assert "assumed" not in format_text_file("a.txt", DecodedText(text))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [(POLISH, "cp1250"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (CHINESE, "gb18030"), (KOREAN, "cp949"), (JAPANESE, "utf-16-le"),
     (GERMAN, "cp437")],
)  # fmt: skip
def test_what_is_not_certain_is_refused_and_read_once_declared(text: str, encoding: str) -> None:
    text = "".join(char for char in text if char.encode(encoding, "ignore"))
    data = text.encode(encoding)
    with pytest.raises(MediaFault, match="Text needs UTF-8, a byte order mark, or a declared charset"):
        decode_text(data)
    assert decode_text(data, encoding) == DecodedText(text)


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [
        ("Shift_JIS", "cp932"),
        ("x-sjis", "cp932"),
        ("none", ""),
        ("windows-31j", "cp932"),
        ("iso-2022-jp", "iso2022_jp"),
        ("EUC-JP", "euc_jp"),
    ],
)
def test_charset_has_the_names_of_the_web(charset: str, encoding: str) -> None:
    data = JAPANESE.encode(encoding or "cp932")
    found = decode_bytes(data, charset)
    assert found == (DecodedText(JAPANESE) if encoding else None)


@pytest.mark.parametrize(
    "charset", ["zlib_codec", "rot13", "idna", "unicode_escape", "utf-7", "none", "a" * 500, "\0", "punycode"]
)
def test_codecs_that_are_no_encoding_of_text_are_not_used(charset: str) -> None:
    assert decode_bytes("é".encode("latin-1"), charset) is None
    assert decode_bytes("é".encode(), charset) == DecodedText("é"), "UTF-8 decides by itself"


def test_wrong_charset_is_named() -> None:
    with pytest.raises(MediaFault) as caught:
        decode_text(b"\xff\xff\x81", "shift_jis")
    assert caught.value.detail == "is no text in the declared charset 'shift_jis'. Declare another one, or send UTF-8."


def test_random_bytes_are_no_text() -> None:
    for data in (
        b"\x81",
        b"\xe9\xe8\xea\xeb",
        b"a\x00",
        b"\x00a" * 8 + b"\x00\x01",
        b"caf\xe9\x01",
        b"a\xa7b",
        b"\xa4\xb3" * 9 + b"\x81",
    ):
        assert decode_bytes(data) is None, data
