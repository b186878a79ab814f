"""What the tests of dialects share: reading in every cut, one line a segment, the ledger, the order of segments."""

import itertools
import json
import random
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from antiphon.events.inputs import CustomTool, FunctionTool, NamespaceTool
from antiphon.events.items import Logprob
from antiphon.harmony.detect import DIALECTS, bytes_format
from antiphon.harmony.format import ModelFormat, PromptInput, RenderedPrompt
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Arguments, Call, Cite, Close, Say, Segment, Think
from tests.counts import FULL_COUNTS

T = TypeVar("T")
CUTS = 1000 if FULL_COUNTS else 20
STEP = 1 if FULL_COUNTS else 3
"""Between the places at which an answer is cut in two."""
SOUPS = 10_000 if FULL_COUNTS else 200
NOW = datetime(2026, 11, 21)  # noqa: DTZ001 - a test's day has no zone
HERE = Path(__file__).parent
NAMES = ("hermes", "qwen3-coder", "plain", "gpt-oss")

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}
WRITE = {
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
        FunctionTool(name="add", description="Adds two numbers.", parameters=ADD),
        FunctionTool(name="write", description="Writes a file.", parameters=WRITE),
        FunctionTool(name="now"),
        CustomTool(name="apply_patch", description="Patches files."),
        NamespaceTool(name="agents", tools=(FunctionTool(name="spawn"), CustomTool(name="script"))),
    ]
)


def conversation(**more: Any) -> PromptInput:
    return PromptInput(**{"tools": TOOLS, **more})


@cache
def tokens_format(name: str) -> ModelFormat:
    """The format in which every marker is one token."""
    return bytes_format(name)


@cache
def letters_format(name: str) -> ModelFormat:
    """The same dialect over a vocabulary that has no markers: they are spelled out in bytes."""
    return TemplateFormat(
        DIALECTS[name], ByteVocabulary((), ("<|im_start|>", "<|im_end|>")), ChatTemplate("{{ messages }}")
    )


def formats(name: str) -> list[ModelFormat]:
    return [tokens_format(name)] if name == "gpt-oss" else [tokens_format(name), letters_format(name)]


def chunks(tokens: Sequence[T], cuts: Iterable[int]) -> Iterator[Sequence[T]]:
    places = [0, *sorted(cuts), len(tokens)]
    yield from (tokens[start:end] for start, end in itertools.pairwise(places))


def read(
    ready: ModelFormat,
    tokens: Sequence[int],
    cuts: Iterable[int] = (),
    *,
    talk: PromptInput | None = None,
    thinking: bool = False,
    natural: bool = True,
) -> tuple[list[Segment], TapeReader]:
    """Read an answer in these pieces; check its ledger and its order; return it with neighbours merged."""
    reader: Any = ready.create_reader(RenderedPrompt((), "", thinking), talk or conversation())
    said: list[Segment] = []
    scores = [Logprob(token="", logprob=-float(place)) for place in range(len(tokens))]
    for chunk, scored in zip(chunks(tokens, cuts := list(cuts)), chunks(scores, cuts), strict=True):
        said += reader.feed(chunk, scored)
    said += reader.finish(natural=natural)
    assert reader.finish(natural=natural) == []
    legal(said)
    merged = merge(said)
    balance(reader, merged)
    return merged, reader


def merge(said: Iterable[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for kind, run in itertools.groupby(said, _mergeable):
        parts: list[Any] = list(run)
        if kind is None:
            merged += parts
            continue
        assert all(part.text for part in parts), "an empty segment was said"
        text = "".join(part.text for part in parts)
        if kind[0] is not Say:
            merged.append(kind[0](text))
            continue
        places = itertools.accumulate((len(part.text) for part in parts), initial=0)
        pairs = zip(places, parts, strict=False)
        scores = tuple(type(one)(at + one.offset, one.logprob) for at, part in pairs for one in part.logprobs)
        merged.append(Say(text, kind[1], scores))
    return merged


def _mergeable(segment: Segment) -> tuple[type, Any] | None:
    """What has to be alike in neighbours that are one; None for what stands for itself."""
    return (type(segment), getattr(segment, "phase", None)) if isinstance(segment, Think | Arguments | Say) else None


def balance(reader: TapeReader, said: Iterable[Segment]) -> None:
    """Every character that was written was passed on, or spent as frame; what was said is that, and what was made."""
    tape = reader.tape
    assert tape.index == len(tape.text), "something was left unread"
    assert tape.read == tape.shown + tape.spent
    assert sum(len(getattr(segment, "text", "")) for segment in said) == tape.shown + reader.generated_chars


def legal(said: Iterable[Segment]) -> None:
    """The order that the machine takes: arguments only in a call, nothing else in one, phases parted by a close."""
    calling, phase = False, ()
    for segment in said:
        if isinstance(segment, Arguments):
            assert calling, "arguments without a call"
        elif isinstance(segment, Close):
            calling, phase = False, ()
        else:
            assert not calling, f"{segment} inside a call"
            if isinstance(segment, Say):
                assert phase in {(), (segment.phase,)}, "two phases without a close between"
                phase = (segment.phase,)
            else:
                phase = ()
            calling = isinstance(segment, Call)


def lines(said: Iterable[Segment]) -> list[str]:
    """One readable line for each segment."""
    return [_line(segment) for segment in said]


def _line(segment: Segment) -> str:
    match segment:
        case Call():
            where = f" of {segment.namespace}" if segment.namespace else ""
            return f"{'call' if segment.kind == 'function' else 'custom'} {segment.name}{where}"
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


def cases(name: str) -> list[dict[str, Any]]:
    """The transcripts of a dialect."""
    text = (HERE / "transcripts" / f"{name}.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["case"]
    return found


def every_case() -> list[Any]:
    import pytest

    return [pytest.param(name, case, id=f"{name}: {case['name']}") for name in NAMES for case in cases(name)]


def options(case: dict[str, Any]) -> dict[str, Any]:
    talk = conversation(tool_choice=case.get("tool_choice", "auto"))
    return {"talk": talk, "thinking": case.get("thinking", False), "natural": case.get("natural", True)}


def random_cuts(length: int, chance: random.Random) -> list[int]:
    return sorted(chance.sample(range(length + 1), chance.randint(0, min(length, 12))))
