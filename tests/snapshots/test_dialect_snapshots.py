"""Snapshots of every dialect: sample outputs of its models, and the segments that its parser reads from them."""

import json
import random
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.state.segments import Segment
from tests.counts import FULL_COUNTS
from tests.harmony import parser_helpers
from tests.harmony.samples import list_sample_outputs, write_sample_calls
from tests.snapshots.snapshot_files import DIALECT_SNAPSHOT_FOLDER, DialectSnapshot

EACH_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


@pytest.fixture
def dialect_snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(DialectSnapshot)


@EACH_DIALECT
@pytest.mark.filterwarnings(
    r"ignore:\s*Can not relate snapshot name"
)  # files are named after dialects, not after tests
def test_what_is_read(dialect: Dialect, dialect_snapshot: SnapshotAssertion) -> None:
    lines = [f"# {dialect.name}: {dialect.models or 'any'}"]
    lines += [f"# reasoning stands between {dialect.think[0]!r} and {dialect.think[1]!r}"] if dialect.think else []
    lines += [f"# the answer stands between {dialect.answer[0]!r} and {dialect.answer[1]!r}"] if dialect.answer else []
    for sample in list_sample_outputs(dialect):
        segments, _ = parser_helpers.parse_tokens(
            parser_helpers.load_token_format(dialect.name), _encode(dialect, sample.text), **sample.options
        )
        lines += ["", f"== {sample.name}", *_quote_lines(sample.text), *_format_indented(segments)]
    if dialect.calls:
        lines += ["", "== cut off", *_format_truncated_calls(dialect, write_sample_calls(dialect, "short"))]
    assert "\n".join(lines) + "\n" == dialect_snapshot(name=dialect.name)


@EACH_DIALECT
def test_a_transcript_is_read_alike_in_every_cut(dialect: Dialect) -> None:
    """Outputs are split between tokens and between characters, and every result is a legal stream."""
    rng = random.Random(f"transcripts of {dialect.name}")
    for sample in list_sample_outputs(dialect):
        formatted_results = set()
        for model_format in parser_helpers.load_formats(dialect.name):
            tokens = model_format.encode(sample.text)
            segments, _ = parser_helpers.parse_tokens(model_format, tokens, **sample.options)
            parser_helpers.check_machine_accepts(segments, natural=True, call_failed=False)
            formatted_results.add(tuple(parser_helpers.format_segments(segments)))
            cut_lists: list[Any] = [
                range(len(tokens)),
                *(parser_helpers.draw_cuts(len(tokens), rng) for _ in range(parser_helpers.RANDOM_SPLITS)),
            ]
            cut_lists += [[cut] for cut in range(len(tokens))] if FULL_COUNTS else []
            for cuts in cut_lists:
                assert parser_helpers.parse_tokens(model_format, tokens, cuts, **sample.options)[0] == segments, (
                    sample.name
                )
        assert len(formatted_results) == 1, sample.name


def test_every_dialect_has_one_file() -> None:
    assert {path.stem for path in DIALECT_SNAPSHOT_FOLDER.glob("*.txt")} == set(DIALECTS)


def _encode(dialect: Dialect, text: str) -> list[int]:
    return parser_helpers.load_token_format(dialect.name).encode(text)


def _quote_lines(text: str) -> list[str]:
    return [f"| {line}".rstrip() for line in text.split("\n")]


def _format_indented(segments: list[Segment]) -> list[str]:
    return [f"    {line}" for line in parser_helpers.format_segments(segments)] or ["    nothing"]


def _format_truncated_calls(dialect: Dialect, text: str) -> list[str]:
    """Returns the segments of the call truncated after each token, once for each distinct list of segment types: at
    the last token that gives it.
    """
    model_format = parser_helpers.load_token_format(dialect.name)
    tokens = model_format.encode(text)
    last_by_types: dict[tuple[type, ...], tuple[int, list[Segment]]] = {}
    for end in range(1, len(tokens)):
        segments, _ = parser_helpers.parse_tokens(model_format, tokens[:end], natural=False)
        last_by_types[tuple(type(segment) for segment in segments)] = end, segments
    lines = []
    for end, segments in sorted(last_by_types.values(), key=lambda pair: pair[0]):
        lines += [
            f"up to {json.dumps(model_format.decode(tokens[:end])[-24:], ensure_ascii=False)}",
            *_format_indented(segments),
        ]
    return lines
