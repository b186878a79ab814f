"""Turns as files: a request for a shell or a program, a script, a cassette, a test."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.inspection.record import RoundRecord, TurnRecord
from antiphon.app.projections.inspection.readings import create_encoder
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.scripted.recording_file import RecordedStep, format_head, format_reply
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import Api, TurnStats
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.scripted.script import Recording
from antiphon.harmony.format import ModelFormat
from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedFrame, RecordedReply, RecordedRequest
from antiphon.kit.cassette.recorder import redact_exchange
from antiphon.kit.cassette.redaction import Redactor
from antiphon.kit.cassette.toml_text import CASSETTE_HEADER, format_exchange
from antiphon.kit.faults.frames import FrameSplitter
from antiphon.kit.snapshot.stream_text import format_stream

ExportForm = Literal["script", "cassette", "test", "curl", "python"]
EXPORT_FORMS: tuple[ExportForm, ...] = get_args(ExportForm)
FILE_NAMES: dict[ExportForm, str] = {
    "script": "{id}.toml",
    "cassette": "{id}.cassette.toml",
    "test": "test_{id}.py",
    "curl": "{id}.sh",
    "python": "{id}.py",
}
CREATE_CALLS: dict[Api, tuple[str, tuple[str, ...]]] = {
    "responses": ("responses.create", ("model", "input")),
    "chat": ("chat.completions.create", ("model", "messages")),
    "completions": ("completions.create", ("model", "prompt")),
}
"""Methods of OpenAI's SDK, each with its required arguments."""
EARLIER_FIELDS = ("previous_response_id", "conversation", "background", "store")
"""Fields of a request that need the store of this server."""
EARLIER_INPUT = "(the outputs of calls in an earlier turn)"
"""Input of a test whose turn has no other."""
_ENDS = {"stop_token": "stop", "max_output_tokens": "length", "context_full": "length", "repetition": "length"}


def export_turn(record: TurnRecord, model: ServedModel | None, form: ExportForm, base_url: str, path: str) -> str:
    """Returns the file. `model` is the turn's, or None if it is not served any more. Raises `ApiError` 400.

    `path`: that of the request.
    """
    request = _read_request(record)
    api = record.stats.api
    if form == "curl":
        return _format_curl(base_url + path, request)
    if form == "python":
        return _format_python(api, request, base_url, path)
    if form == "cassette":
        return _format_cassette(record.open_log(), api, path, request)
    if model is None:
        raise ApiError(400, "model_not_found", "The model of this turn is not served any more.", "form")
    log, rounds = record.open_log(), record.read_rounds()
    steps = list(_split_steps(log, record.stats, rounds))
    if form == "script":
        return _format_script(model, rounds, steps)
    return _format_test(record, model.format, log, request, steps)


def _read_request(record: TurnRecord) -> dict[str, Any]:
    body = record.read_request()
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_value", "The request of this turn was not kept, so it cannot be exported.", "form")
    return value


def _encode(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True)


def _format_curl(url: str, request: dict[str, Any]) -> str:
    headers = "-H 'content-type: application/json' -H \"authorization: Bearer $ANTIPHON_API_KEY\""
    # Quoted, the shell expands nothing in it; ASCII JSON cannot hold the line that ends it.
    head = f"curl {url} {headers} \\\n  --data-binary @- <<'END-OF-REQUEST'"
    return f"{head}\n{_encode(request)}\nEND-OF-REQUEST\n"


def _format_python(api: Api, request: dict[str, Any], base_url: str, path: str) -> str:
    if api == "messages":
        lines = [
            "import json\n\nfrom anthropic import Anthropic\n",
            f'client = Anthropic(base_url={base_url!r}, api_key="unused")',
            f"request = json.loads({_encode(request)!r})",
            'request.pop("stream", None)',
            "print(client.messages.create(**request))\n",
        ]
        return "\n".join(lines)
    call, names = CREATE_CALLS.get(api, ("responses.compact", ("model",)))
    required = ", ".join(f'"{name}": request.pop("{name}", None)' for name in names)
    version = path.split("/")[1]
    lines = [
        "import json\nimport os\n\nfrom openai import OpenAI\n",
        f'client = OpenAI(base_url={f"{base_url}/{version}"!r}, api_key=os.environ.get("ANTIPHON_API_KEY", "unused"))',
        f"request = json.loads({_encode(request)!r})",
        'request.pop("stream", None)',
        f"required = {{{required}}}",
        "# The SDK puts the other fields into the body as they are, also those that it does not know.",
        f"print(client.{call}(**required, extra_body=request))\n",
    ]
    return "\n".join(lines)


def _format_cassette(log: EventLog, api: Api, path: str, request: dict[str, Any]) -> str:
    """Returns a cassette of one exchange: the request, and the frames of its stream."""
    encoder = create_encoder(log, "responses" if api == "compact" else api)
    splitter, frames = FrameSplitter(), list[RecordedFrame]()
    at_ms = 0
    frames += [RecordedFrame(0, frame) for frame in splitter.feed(encoder.initial())]
    for entry in log.entries:
        if entry.detail is not None:
            at_ms = entry.detail.at_us // 1000
        frames += [RecordedFrame(at_ms, frame) for frame in splitter.feed(encoder.encode(0, [entry]))]
    frames += [RecordedFrame(at_ms, frame) for frame in splitter.feed(encoder.final())]
    headers = (("content-type", "text/event-stream; charset=utf-8"),)
    exchange = RecordedExchange(
        request=RecordedRequest(
            method="POST",
            path=path,
            headers=(("content-type", "application/json"),),
            body=msgspec.json.encode(request | {"stream": True}),
        ),
        response=RecordedReply(status=200, headers=headers, frames=tuple(frames)),
    )
    return CASSETTE_HEADER + format_exchange(redact_exchange(exchange, Redactor()))


def _split_steps(log: EventLog, stats: TurnStats, rounds: Sequence[RoundRecord]) -> Iterator[list[RecordedStep]]:
    """Yields the steps of each round: its tokens, with the pauses between them, and how it ended."""
    details = [entry.detail for entry in log.entries if entry.detail is not None and entry.detail.tokens]
    pieces = [(detail.at_us, token) for detail in details for token in detail.tokens]
    tokens = iter(pieces)
    for number, each in enumerate(rounds):
        steps, last_us = list[RecordedStep](), None
        for at_us, token in islice(tokens, each.output_tokens):
            if last_us == at_us:
                steps[-1][1]["ids"].append(token)
            else:
                steps.append((0.0 if last_us is None else (at_us - last_us) / 1e6, {"ids": [token]}))
            last_us = at_us
        yield [*steps, *_list_end(log, stats, steps, is_last=number == len(rounds) - 1)]


def _list_end(log: EventLog, stats: TurnStats, steps: list[RecordedStep], *, is_last: bool) -> list[RecordedStep]:
    """Returns how the engine's job ended. A round before the last one ended with the model's turn."""
    cause = stats.ending.cause if is_last and stats.ending is not None else "stop_token"
    error = log.response.error
    if cause in ("engine_fault", "deadline") and error is not None:
        return [(0.0, {"fault": error.message, "code": error.code})]
    finish = _ENDS.get(cause, "cancelled")
    if steps and finish != "cancelled":
        steps[-1][1]["finish"] = finish
        return []
    return [(0.0, {"ids": [], "finish": finish})]


def _format_script(model: ServedModel, rounds: Sequence[RoundRecord], steps: Sequence[list[RecordedStep]]) -> str:
    """Returns a script that `antiphon serve --engine scripted` plays."""
    folder, form = model.folder, model.format
    tokenizer = "" if folder is None else "embedded" if folder == MODEL_DIR else str(folder)
    recording = Recording(model=model.names[0], dialect=form.name, engine=model.engine.info, tokenizer=tokenizer)
    replies = [
        format_reply(f"round-{number + 1}", tuple(each.prompt), each.cached_tokens, round_steps, form.decode)
        for number, (each, round_steps) in enumerate(zip(rounds, steps, strict=True))
    ]
    return format_head(recording) + "".join(replies)


def _format_test(
    record: TurnRecord,
    form: ModelFormat,
    log: EventLog,
    request: dict[str, Any],
    steps: Sequence[list[RecordedStep]],
) -> str:
    """Returns a test for pytest: the model's output as text, played by the scripted engine, and the stream's lines."""
    if record.stats.api != "responses":
        raise ApiError(400, "invalid_value", "Only a turn of the Responses API can be exported as a test.", "form")
    replies = [_build_reply(form, round_steps) for round_steps in steps]
    body = {name: value for name, value in request.items() if name not in (*EARLIER_FIELDS, "model", "stream")}
    if isinstance(body.get("input"), list):
        items = list(_without_sealed_content(body["input"]))
        body["input"] = list(_without_lone_outputs(items)) or EARLIER_INPUT
    events = [json.loads(entry.data) for entry in log.entries]
    lines = [
        "import json\n",
        "from openai import OpenAI\n",
        "from antiphon.kit.testing import format_stream\n",
        f"REPLIES = json.loads({_encode(replies)!r})",
        f"REQUEST = json.loads({_encode(body)!r})",
        f"EXPECTED = {format_stream(events)!r}\n\n",
        "def test_turn(responses_server, assert_conformant):",
        f"    server = responses_server(REPLIES, dialect={form.name!r})",
        "    client = OpenAI(base_url=server.base_url, api_key=server.api_key)",
        "    stream = client.responses.create(",
        f"        model=server.model, input=REQUEST.get({'input'!r}), stream=True, extra_body=REQUEST",
        "    )",
        "    events = list(stream)",
        "    assert format_stream(events) == EXPECTED",
        "    assert_conformant(events)\n",
    ]
    return "\n".join(lines)


def _without_sealed_content(items: Iterable[Any]) -> Iterator[Any]:
    """Yields input items without what only this server can open. A summary of a compaction has nothing else."""
    for item in items:
        if not isinstance(item, dict) or "encrypted_content" not in item:
            yield item
        elif item.get("type") == "reasoning":
            yield {name: value for name, value in item.items() if name != "encrypted_content"}


def _without_lone_outputs(items: Sequence[Any]) -> Iterator[Any]:
    """Yields input items without outputs of calls that are in an earlier turn, whose items only this server has."""
    calls = {item.get("call_id") for item in items if isinstance(item, dict) and not _is_output(item)}
    return (item for item in items if not _is_output(item) or item.get("call_id") in calls)


def _is_output(item: Any) -> bool:
    return isinstance(item, dict) and str(item.get("type")).endswith("_output")


def _build_reply(form: ModelFormat, steps: Sequence[RecordedStep]) -> dict[str, Any]:
    """Returns a reply in text: the ids of this model mean nothing to the vocabulary of the scripted engine."""
    decode: Callable[[int], bytes] = lambda token: form.decode_token(token)[1]  # noqa: E731
    ids = [token for _, step in steps for token in step.get("ids", ())]
    finish = next((step["finish"] for _, step in steps if "finish" in step), "stop")
    if finish == "stop" and ids and ids[-1] in form.stop_ids:
        ids = ids[:-1]
    output: list[Any] = [b"".join(map(decode, ids)).decode(errors="replace")]
    output += [{"fault": step["fault"], "code": step["code"]} for _, step in steps if "fault" in step]
    return {"output": output, **({"finish": "length"} if finish == "length" else {})}
