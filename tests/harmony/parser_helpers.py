"""Helpers of the dialect tests: parses tokens in any split, checks and formats segments, loads transcripts."""

import itertools
import json
import random
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from antiphon.events.items import Logprob
from antiphon.events.response import Response
from antiphon.events.tools import CustomTool, FunctionTool, NamespaceTool
from antiphon.harmony.detection.detect import DIALECTS, bytes_format
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from antiphon.state.machine import Machine
from antiphon.state.segments import Arguments, Call, Cite, Close, Say, Segment, Think
from tests.counts import FULL_COUNTS

T = TypeVar("T")
RANDOM_SPLITS = 1000 if FULL_COUNTS else 5
"""Number of random splits of one output."""
CUT_STEP = 1 if FULL_COUNTS else 5
"""Distance between the token indices at which an output is cut in two."""
RANDOM_OUTPUTS = 10_000 if FULL_COUNTS else 120
"""Number of random outputs a test parses for one dialect."""
NOW = datetime(2026, 11, 21)  # noqa: DTZ001 - prompts hold a date without a time zone
TRANSCRIPTS_FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPT_DIALECTS = ("hermes", "qwen3-coder", "plain", "gpt-oss")
"""Dialects that have a file of transcripts."""

ADD_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}
WRITE_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "mode": {"type": ["string", "null"]},
        "size": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "deep": {"$ref": "#/$defs/deep"},
        "yes": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {"deep": {"type": "object"}},
}
TOOLS = ToolTable.from_request(
    [
        FunctionTool(name="add", description="Adds two numbers.", parameters=ADD_SCHEMA),
        FunctionTool(name="write", description="Writes a file.", parameters=WRITE_SCHEMA),
        FunctionTool(name="now"),
        CustomTool(name="apply_patch", description="Patches files."),
        NamespaceTool(name="agents", tools=(FunctionTool(name="spawn"), CustomTool(name="script"))),
    ]
)


def build_prompt_input(**fields: Any) -> PromptInput:
    """Returns a prompt input that offers `TOOLS`, unless `fields` has other tools."""
    return PromptInput(**{"tools": TOOLS, **fields})


@cache
def load_token_format(name: str) -> ModelFormat:
    """Returns the format in which every marker is one token."""
    return bytes_format(name)


@cache
def load_byte_format(name: str) -> ModelFormat:
    """Returns the same dialect over a vocabulary without markers, which are spelled in bytes."""
    return TemplateFormat(
        DIALECTS[name], ByteVocabulary((), ("<|im_start|>", "<|im_end|>")), ChatTemplate("{{ messages }}")
    )


def load_formats(name: str) -> list[ModelFormat]:
    """Returns the token format and the byte format of a dialect. gpt-oss has a token format only."""
    return [load_token_format(name)] if name == "gpt-oss" else [load_token_format(name), load_byte_format(name)]


def split_at(tokens: Sequence[T], cuts: Iterable[int]) -> Iterator[Sequence[T]]:
    indices = [0, *sorted(cuts), len(tokens)]
    yield from (tokens[start:end] for start, end in itertools.pairwise(indices))


def parse_tokens(
    model_format: ModelFormat,
    tokens: Sequence[int],
    cuts: Iterable[int] = (),
    *,
    prompt_input: PromptInput | None = None,
    thinking: bool = False,
    natural: bool = True,
) -> tuple[list[Segment], TapeReader]:
    """Parses an output in chunks and checks its ledger and the order of its segments.

    Returns the segments, neighbours of one kind merged, and the reader. `thinking` means that the prompt opened
    reasoning; `natural` means that the model stopped by itself.
    """
    rendered = RenderedPrompt((), "", thinking)
    reader: Any = model_format.create_reader(rendered, prompt_input or build_prompt_input())
    segments: list[Segment] = []
    logprobs = [Logprob(token="", logprob=-float(index)) for index in range(len(tokens))]
    chunks = zip(split_at(tokens, cuts := list(cuts)), split_at(logprobs, cuts), strict=True)
    for chunk, chunk_logprobs in chunks:
        segments += reader.feed(chunk, chunk_logprobs)
    segments += reader.finish(natural=natural)
    assert reader.finish(natural=natural) == []
    check_segment_order(segments)
    merged = merge_segments(segments)
    check_ledger(reader, merged)
    return merged, reader


def merge_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Joins neighbouring text segments of the same kind and phase."""
    merged: list[Segment] = []
    for kind, run in itertools.groupby(segments, _merge_key):
        parts: list[Any] = list(run)
        if kind is None:
            merged += parts
            continue
        assert all(part.text for part in parts), "empty segment"
        text = "".join(part.text for part in parts)
        if kind[0] is not Say:
            merged.append(kind[0](text))
            continue
        starts = itertools.accumulate((len(part.text) for part in parts), initial=0)
        pairs = zip(starts, parts, strict=False)
        logprobs = tuple(
            type(entry)(start + entry.offset, entry.logprob) for start, part in pairs for entry in part.logprobs
        )
        merged.append(Say(text, kind[1], logprobs))
    return merged


def _merge_key(segment: Segment) -> tuple[type, Any] | None:
    """Returns the key that mergeable neighbours share, or None for a segment that is never merged."""
    return (type(segment), getattr(segment, "phase", None)) if isinstance(segment, Think | Arguments | Say) else None


def check_ledger(reader: TapeReader, segments: Iterable[Segment]) -> None:
    """Checks that every character read was passed on or spent as frame, and that segments hold no others.

    Characters that the reader itself generated, such as JSON punctuation, are counted separately.
    """
    tape = reader.tape
    assert tape.index == len(tape.text), "text left unread"
    assert tape.read == tape.num_taken + tape.num_skipped
    assert sum(len(getattr(segment, "text", "")) for segment in segments) == tape.num_taken + reader.generated_chars


def check_segment_order(segments: Iterable[Segment]) -> None:
    """Checks the order that the machine accepts.

    Arguments occur only inside a call, a call holds nothing else, and a close separates two phases.
    """
    in_call, phase = False, ()
    for segment in segments:
        if isinstance(segment, Arguments):
            assert in_call, "arguments without a call"
        elif isinstance(segment, Close):
            in_call, phase = False, ()
        else:
            assert not in_call, f"{segment} inside a call"
            if isinstance(segment, Say):
                assert phase in {(), (segment.phase,)}, "two phases without a close between"
                phase = (segment.phase,)
            else:
                phase = ()
            in_call = isinstance(segment, Call)


def check_machine_accepts(segments: list[Segment], *, natural: bool, call_failed: bool) -> None:
    """Checks that the machine accepts all segments, and fails exactly where a call was left open."""
    created_at = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp())
    response = Response(id="resp_x", created_at=created_at, model="x", status="queued")
    machine = Machine(response, new_id=lambda prefix: f"{prefix}_x", clock=lambda: 0)
    machine.begin()
    for segment in segments:
        assert not machine.is_ended
        machine.feed(segment)
    machine.stop() if natural else machine.cut()
    has_open_call = sum(isinstance(segment, Call) for segment in segments) > _count_closed_calls(segments)
    assert has_open_call or not call_failed
    assert machine.response.status == (("failed" if has_open_call else "completed") if natural else "incomplete")


def _count_closed_calls(segments: list[Segment]) -> int:
    closed, in_call = 0, False
    for segment in segments:
        closed += in_call and isinstance(segment, Close)
        in_call = isinstance(segment, Call) or (in_call and isinstance(segment, Arguments))
    return closed


def collect_calls(segments: list[Segment]) -> list[tuple[str, Any]]:
    """Returns (tool name, arguments) of each call: parsed JSON, a custom tool's text, or `...` for an open call."""
    calls: list[tuple[str, Any]] = []
    text, custom = "", False
    for segment in segments:
        if isinstance(segment, Call):
            calls.append((segment.name, ...))
            text, custom = "", segment.kind == "custom"
        elif isinstance(segment, Arguments):
            text += segment.text
        elif isinstance(segment, Close) and calls and calls[-1][1] is ...:
            calls[-1] = (calls[-1][0], text if custom else json.loads(text or "{}"))
    return calls


def format_segments(segments: Iterable[Segment]) -> list[str]:
    """Returns one readable line for each segment."""
    return [_format_segment(segment) for segment in segments]


def _format_segment(segment: Segment) -> str:
    match segment:
        case Call():
            suffix = f" of {segment.namespace}" if segment.namespace else ""
            return f"{'call' if segment.kind == 'function' else 'custom'} {segment.name}{suffix}"
        case Close():
            return "close"
        case Say():
            verb = segment.phase or "say"
        case Think():
            verb = "think"
        case Cite(source, length):
            return f"cite {length} characters: {getattr(source, 'file_id', source)}"
        case _:
            verb = "args"
    return f"{verb} {json.dumps(segment.text, ensure_ascii=False)}"  # type: ignore[union-attr] # the others are above


def load_transcripts(name: str) -> list[dict[str, Any]]:
    """Returns the transcripts of a dialect."""
    text = (TRANSCRIPTS_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = tomllib.loads(text)["case"]
    return cases


def list_transcript_params() -> list[Any]:
    """Returns a pytest parameter set (dialect, transcript) for every transcript."""
    import pytest

    return [
        pytest.param(name, case, id=f"{name}: {case['name']}")
        for name in TRANSCRIPT_DIALECTS
        for case in load_transcripts(name)
    ]


def parse_options(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments with which `parse_tokens` parses a transcript."""
    prompt_input = build_prompt_input(tool_choice=case.get("tool_choice", "auto"))
    return {
        "prompt_input": prompt_input,
        "thinking": case.get("thinking", False),
        "natural": case.get("natural", True),
    }


def draw_cuts(length: int, rng: random.Random) -> list[int]:
    """Draws up to twelve cuts of `length` tokens."""
    return sorted(rng.sample(range(length + 1), rng.randint(0, min(length, 12))))
