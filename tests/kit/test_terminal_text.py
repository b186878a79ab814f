"""Text that is safe for a terminal."""

import json
import re
import sys
import unicodedata

import pytest

from antiphon.kit.findings import FindingList, quote
from antiphon.kit.terminal_text import MAX_LINE_CHARS, escape_json, show_controls, show_line
from tests.kit.hostile_texts import HOSTILE_TEXTS, find_terminal_controls

ALL_CHARACTERS = "".join(map(chr, range(sys.maxunicode + 1)))
VARIATION_SELECTORS = set(map(chr, range(0xFE00, 0xFE10)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢, 🦜, a\u0301", "plain, é, 漢, 🦜, a\u0301"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J\x07\r\x00\x1f", "␛[2J␇␍␀␟"),
        ("\x7f\x80\x9b31m\x9f", "␡⟨U+0080⟩⟨U+009B⟩31m⟨U+009F⟩"),
        ("\u202egnp.exe\u2066\u2069\u200e", "⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+2069⟩⟨U+200E⟩"),
        ("a\u200bb\u200d\u2060\ufeff\xad", "a⟨U+200B⟩b⟨U+200D⟩⟨U+2060⟩⟨U+FEFF⟩⟨U+00AD⟩"),
        ("\u2028\u2029\x85", "⟨U+2028⟩⟨U+2029⟩⟨U+0085⟩"),
        ("\ud83d \udc9b", "⟨U+D83D⟩ ⟨U+DC9B⟩"),
        ("\U000e0041\U000e0fff\U000e1000", "⟨U+E0041⟩⟨U+E0FFF⟩\U000e1000"),
        ("❤\ufe0f", "❤\ufe0f"),
        (b"caf\xc3\xa9 \x9b31m \xff\n", "café ⟨0x9B⟩31m ⟨0xFF⟩\n"),
        (b"\xc2\x9b \xe2\x80\xae \xed\xa0\x80", "⟨U+009B⟩ ⟨U+202E⟩ ⟨0xED⟩⟨0xA0⟩⟨0x80⟩"),
    ],
    ids=ascii,
)
def test_unsafe_characters_become_pictures(text: str | bytes, shown: str) -> None:
    assert show_controls(text) == shown


def test_no_control_format_or_surrogate_passes() -> None:
    """Every character of Unicode: of the controls, formats, surrogates and separators, only two stay as they are."""
    stay = {char for char in ALL_CHARACTERS if show_controls(char) == char}
    unsafe = {char for char in ALL_CHARACTERS if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")}
    assert stay & unsafe == {"\n", "\t"}
    # Formats that are drawn: marks of Arabic, Syriac and Kaithi numbers, Egyptian joiners.
    formats = {ord(char) for char in stay if unicodedata.category(char) == "Cf"}
    drawn = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    assert formats <= drawn
    assert stay >= VARIATION_SELECTORS and len(stay) > 1_100_000


def test_result_of_any_text_can_be_encoded_and_is_stable() -> None:
    shown = show_controls(ALL_CHARACTERS)
    assert shown.encode() and show_controls(shown) == shown and show_controls(shown.encode()) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\x1b", "a␊b\tc␛"),
        (b"a\nb\xff", "a␊b⟨0xFF⟩"),
        ("x" * 9, "x" * 9),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 9 + "…"),
        ("🦜" * 10, "🦜" * 10),
        ("🦜".encode() * 10, "🦜" * 10),
        ("🦜".encode() * 11, "🦜" * 9 + "…"),
        ("\u202e" * 2, "⟨U+202E⟩⟨…"),
    ],
    ids=ascii,
)
def test_line_has_no_line_feed_and_a_limit(text: str | bytes, shown: str) -> None:
    assert show_line(text, 10) == shown


def test_line_of_a_megabyte_is_cut() -> None:
    assert len(show_line("x" * 1_000_000)) == len(show_line(b"\xff" * 1_000_000)) == MAX_LINE_CHARS


def test_escaped_json_has_the_same_value_and_no_unsafe_character() -> None:
    value = {"text": ALL_CHARACTERS, "\u202ekey": [1, "\x9b"]}
    text = escape_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert text.encode() and not find_terminal_controls(text)
    whole = json.loads(text)  # a high and a low surrogate that are neighbours are read as one character
    assert whole["\u202ekey"] == value["\u202ekey"]
    assert whole["text"].encode("utf-16", "surrogatepass") == ALL_CHARACTERS.encode("utf-16", "surrogatepass")


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_finding_about_a_hostile_text_is_safe_and_short(name: str) -> None:
    text = HOSTILE_TEXTS[name]
    findings = FindingList()
    findings.add("data-not-json", text, quote({text: text}), text)
    [finding] = findings.list_findings()
    for shown in (finding.expected, finding.actual, finding.subject, quote(text), str(finding)):
        assert not find_terminal_controls(shown) and "\n" not in shown and len(shown) < 10_000


def test_hostile_texts_are_hostile() -> None:
    """The list must hold what it names, or the tests that use it show nothing."""
    assert all(find_terminal_controls(text) or len(text) > 100_000 for text in HOSTILE_TEXTS.values())
    assert re.search("\x1b\\]52;", HOSTILE_TEXTS["clipboard"])
