"""Every dialect as a file a person can read aloud: what its models write, and what is read of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.counts import FULL_COUNTS
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.state.segments import Segment
from tests.harmony import parser_helpers
from tests.harmony.samples import transcripts, written
from tests.harmony.test_soup import drive
from tests.snapshots.test_snapshots import OneFileACase

FOLDER = Path(__file__).resolve().parents[2] / "snapshots" / "dialects"
EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


class OneFileADialect(OneFileACase):
    """`snapshots/dialects/NAME.txt`."""

    folder = FOLDER


@pytest.fixture
def shown(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(OneFileADialect)


@EVERY
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # files are named after dialects, not after tests
def test_what_is_read(dialect: Dialect, shown: SnapshotAssertion) -> None:
    lines = [f"# {dialect.name}: {dialect.models or 'any'}"]
    lines += [f"# reasoning stands between {dialect.think[0]!r} and {dialect.think[1]!r}"] if dialect.think else []
    lines += [f"# the answer stands between {dialect.answer[0]!r} and {dialect.answer[1]!r}"] if dialect.answer else []
    for one in transcripts(dialect):
        said, _ = parser_helpers.read(parser_helpers.tokens_format(dialect.name), _tokens(dialect, one.text), **one.options)
        lines += ["", f"== {one.name}", *_quoted(one.text), *_indented(said)]
    if dialect.calls:
        lines += ["", "== cut off", *_cut(dialect, written(dialect, "short"))]
    assert "\n".join(lines) + "\n" == shown(name=dialect.name)


@EVERY
def test_a_transcript_is_read_alike_in_every_cut(dialect: Dialect) -> None:
    """Over tokens and over letters; each reading is a legal stream."""
    chance = random.Random(f"transcripts of {dialect.name}")
    for one in transcripts(dialect):
        readings = set()
        for ready in parser_helpers.formats(dialect.name):
            tokens = ready.encode(one.text)
            whole, _ = parser_helpers.read(ready, tokens, **one.options)
            drive(whole, natural=True, broken=False)
            readings.add(tuple(parser_helpers.lines(whole)))
            ways: list[Any] = [range(len(tokens)), *(parser_helpers.random_cuts(len(tokens), chance) for _ in range(parser_helpers.CUTS))]
            ways += [[cut] for cut in range(len(tokens))] if parser_helpers.FULL_COUNTS else []
            for cuts in ways:
                assert parser_helpers.read(ready, tokens, cuts, **one.options)[0] == whole, one.name
        assert len(readings) == 1, one.name


def test_every_dialect_has_one_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(DIALECTS)


def _tokens(dialect: Dialect, text: str) -> list[int]:
    return parser_helpers.tokens_format(dialect.name).encode(text)


def _quoted(text: str) -> list[str]:
    return [f"| {line}".rstrip() for line in text.split("\n")]


def _indented(said: list[Segment]) -> list[str]:
    return [f"    {line}" for line in parser_helpers.lines(said)] or ["    nothing"]


def _cut(dialect: Dialect, text: str) -> list[str]:
    """The call cut off behind every token: told once for each kind of reading, at the last place that reads so."""
    ready = parser_helpers.tokens_format(dialect.name)
    tokens = ready.encode(text)
    last: dict[tuple[type, ...], tuple[int, list[Segment]]] = {}
    for end in range(1, len(tokens)):
        said, _ = parser_helpers.read(ready, tokens[:end], natural=False)
        last[tuple(type(segment) for segment in said)] = end, said
    lines = []
    for end, said in sorted(last.values(), key=lambda pair: pair[0]):
        lines += [f"up to {json.dumps(ready.decode(tokens[:end])[-24:], ensure_ascii=False)}", *_indented(said)]
    return lines
