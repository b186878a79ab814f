"""The fast reader of key files: what it reads, `tomllib` reads the same; what it may not judge, it leaves."""

import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.keys.file_edits import add_key
from antiphon.app.keys.key_file import list_headers, parse_key_file
from antiphon.app.keys.plain_tables import read_plain_tables
from antiphon.app.options.api_keys import ApiKeyError
from tests.counts import FULL_COUNTS
from tests.syntax import ROOT

NUM_TEXTS = 200_000 if FULL_COUNTS else 4_000
PLAIN = (
    "[[key]]", "  [[key]]\t# of the team", "[owners.a]", '[owners."b@example.org"] # "quoted"', "", "  ", "\t# [[key]]",
    "# \"\"\" '''", 'owner = "a"', 'owner="b"#"', 'sha256 = "abc"', 'key = "# no comment"', 'key = "\u00e9\t"',
    "max_concurrent = 4", "requests_per_minute = 0", "tokens_per_day = 1_000", "tokens_per_month = 123456789012345678901",
    "store_gib = 0.5", "store_gib = 1e3", "role = true", "expires = 2027-01-31", "expires = 2027-01-31T10:00:00+02:00",
    'models = ["a", "b"]', 'models=[ "a" , "b#" ] # two', "a-b_1 = +7", "c = -0x", "d = 0xff", "e = inf", "f = 10:00:00",
)  # fmt: skip
OTHER = (
    '"""', "'''", 'a = """', "a = '''", 'a = """x', "a = [", "]", 'models = ["a",', '"b"]', 'models = ["a",]', "models = []",
    "a.b = 1", '"a" = 1', "'a' = 1", "a = 'x'", r'a = "\""', r'a = "\u0041"', "a = {b = 1}", "a = 1 2", "a = 01", "a = ", "= 1",
    "a", "[a]", "[owners]", "[owners.a.b]", "[[owners.a]]", "[key]", "[ owners.a ]", "[[ key ]]", "[ [key]]", "[[key]", "[[key]] x",
    'a = "x" y', 'a = "x', 'a = "\x01"', "# \x00", "a = 1\r ", "\r#", "\x0c", "# \x85[[key]]", 'a = "\u2028"', "expires = 2027-01-31 10:00:00",
    "\ufeff[[key]]", "a = 1\u00a0", "a = \u0661", "\u00e9 = 1", 'models = [["a"]]', 'models = ["a" "b"]', "a = 2027-13-01", "a = _1",
)  # fmt: skip


def make_text(rng: random.Random) -> str:
    """Returns random lines, most of them plain, after a header; some texts have one character more or less."""
    lines = ["[[key]]" if rng.random() < 0.9 else rng.choice(PLAIN)]
    other_share = rng.choice((0, 0, 0.1, 0.5))
    for _ in range(rng.randrange(9)):
        lines.append(rng.choice(OTHER if rng.random() < other_share else PLAIN))
        if rng.random() < 0.3:  # names that differ: few texts would be without a name that is there twice
            lines[-1] = re.sub(r"^\w+(?= ?=)", lambda _: f"n{rng.randrange(99)}", lines[-1])
    text = rng.choice(("\n", "\n", "\r\n")).join(lines) + rng.choice(("\n", "", "\r"))
    if rng.random() < 0.2:
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(("", *"\"'[]=#,.\\\n\r \t_-0aZ")) + text[place + rng.randrange(2) :]
    return text


def test_what_is_read_means_the_same_to_tomllib() -> None:
    rng, num_read = random.Random(11), 0
    for _ in range(NUM_TEXTS):
        text = make_text(rng)
        plain = read_plain_tables(text)
        if plain is not None:
            num_read += 1
            assert repr(plain.document) == repr(sort_tables(tomllib.loads(text), plain.document)), text
            assert plain.headers == list_headers(text), text
    assert num_read > NUM_TEXTS // 5, "too few texts say anything"


def sort_tables(document: dict[str, Any], as_in: dict[str, Any]) -> dict[str, Any]:
    """Returns a document with its names in the order of another one, for a comparison that sees types and NaN."""
    assert document.keys() == as_in.keys()
    return {name: document[name] for name in as_in}


@pytest.mark.parametrize("line", OTHER)
def test_lines_that_are_left_to_tomllib(line: str) -> None:
    """Also within a text that is plain otherwise."""
    for text in (f"[[key]]\n{line}\n", f'[[key]]\nowner = "a"\n{line}\n[owners.a]\nmax_concurrent = 1\n'):
        assert read_plain_tables(text) is None


@pytest.mark.parametrize(
    "text",
    ['owner = "a"\n[[key]]', '[[key]]\nowner = "a"\nowner = "a"', "[[key]]\n[owners.a]\n[owners.a]", '[owners.a]\n[owners."a"]'],
)  # fmt: skip
def test_names_without_a_table_or_defined_twice_are_left(text: str) -> None:
    assert read_plain_tables(text) is None


def test_files_of_the_command_and_of_the_documentation_are_plain() -> None:
    text, path = "sk-a\nsk-b\n", Path("keys.toml")
    fields = {"owner": "a", "models": ["m"], "max_concurrent": 4, "store_gib": 0.5}
    assert read_plain_tables(add_key(text, path, "sk-c", fields)) is not None
    page = (ROOT / "docs/keys.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples and all(read_plain_tables(example) is not None for example in examples)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000, str(1 << 63)])
def test_numbers_and_lists_beyond_any_limit_are_faults(value: str) -> None:
    with pytest.raises(ApiKeyError):
        parse_key_file(f'[[key]]\nkey = "sk-a"\nmax_concurrent = {value}', Path("keys.toml"))
