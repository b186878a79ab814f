"""The file of `serve --record`: a script in TOML, to which the token stream of each finished job is appended."""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon.app.options.serve_options import ServeError
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Chunk, EngineError, Job
from antiphon.engine.scripted.script import Recording, prompt_key
from antiphon.kit.line_ends import escape_line_separators

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
MIN_PAUSE_S = 0.001
"""Shortest pause that is written."""
MAX_PROMPT_CHARS = 400
"""Length of the end of a prompt in its comment."""

RecordedStep = tuple[float, dict[str, Any]]
"""Seconds before a step, and its entry of `output`."""
RECORDING_HEADER = """\
# Token streams of an engine, recorded by `antiphon serve --record`. To play them through any API:
#     antiphon serve --engine scripted --script FILE
# This file holds the ends of the prompts and the replies of all clients: treat it like their conversations.
# A reply answers exactly the prompt that it was recorded with; `when = ["words"]` lets it answer others, too.
# pause_scale = 0 plays without pauses; tokens_per_chunk = 1 plays a reply token by token.

"""


class RecordingFile:
    """A script that grows with every finished job. What is written is valid TOML, whenever the process ends.

    `decode` returns the text of token ids, for the comments.
    """

    def __init__(self, path: Path, decode: Callable[[Sequence[int]], str]) -> None:
        self._path, self._decode = path, decode
        self._num_replies = 0
        self._descriptor = -1
        if path.exists():
            raise ServeError(f"--record {path}: the file exists; name a new one, or delete it")
        if not path.parent.is_dir():
            raise ServeError(f"--record {path}: {path.parent} is not a folder")

    def create_file(self, recording: Recording) -> None:
        """Creates the file with the model that the token ids belong to. Raises `LoadError`."""
        try:
            self._descriptor = os.open(self._path, CREATE_FLAGS, 0o600)
        except OSError as error:
            raise LoadError(f"--record {self._path}: cannot be created: {error.strerror}") from None
        self._append(format_head(recording))

    def write_job(self, recorded: "RecordedJob") -> None:
        """Appends the reply of a job that has ended."""
        self._num_replies += 1
        name, steps = f"turn-{self._num_replies}", recorded.steps
        self._append(format_reply(name, recorded.job.tokens, recorded.cached_tokens, steps, self._decode))

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, text: str) -> None:
        """Writes a block at once. One that does not fit on the disk is taken back, so that the file stays valid."""
        if self._descriptor < 0:
            return
        data, size = text.encode(errors="replace"), os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise


def format_head(recording: Recording) -> str:
    """Returns the begin of a file: the model that the token ids belong to."""
    table = _drop_none(msgspec.to_builtins(recording, str_keys=True))
    engine = table.pop("engine")
    return RECORDING_HEADER + _format_table("recording", table) + _format_table("recording.engine", engine)


def format_reply(
    name: str,
    prompt: Sequence[int],
    cached_tokens: int,
    steps: Sequence[RecordedStep],
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Returns the reply to a prompt of these ids. `decode` returns the text of ids, for the comments."""
    text = decode(prompt)
    mark = "…" if len(text) > MAX_PROMPT_CHARS else ""
    lines = [
        f"\n# prompt of {len(prompt)} tokens: {_comment(mark + text[-MAX_PROMPT_CHARS:])}",
        "[[reply]]",
        f"name = {format_toml(name)}",
        f"prompt = {format_toml(prompt_key(prompt))}",
        f"cached_tokens = {cached_tokens}",
        "tokens_per_chunk = 0",
        "output = [",
    ]
    for pause, step in steps:
        if pause >= MIN_PAUSE_S:
            lines.append(f"  {{pause = {round(pause, 3):g}}},")
        comment = f"  # {_comment(decode(step['ids']))}" if step.get("ids") else ""
        lines.append(f"  {format_toml(step)},{comment}")
    return "\n".join([*lines, "]\n"])


class RecordedJob:
    """The recording of one job: its chunks, each with the pause before it."""

    def __init__(self, job: Job, clock: Callable[[], float]) -> None:
        self.job = job
        self.steps: list[RecordedStep] = []
        self.cached_tokens = 0
        self._clock = clock
        self._last_at: float | None = None
        self._is_finished = False

    @property
    def is_admitted(self) -> bool:
        """True if the engine has sent a chunk."""
        return self._last_at is not None

    def add_chunk(self, chunk: Chunk) -> None:
        """Records a chunk. The first one marks the admission: the wait before it is not recorded."""
        now = self._clock()
        pause = 0.0 if self._last_at is None else now - self._last_at
        self._last_at = now
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        if chunk.fault is not None:
            if chunk.tokens:
                self.steps.append((pause, _tokens_step(chunk)))
            fault = chunk.fault
            self.steps.append((0.0, {"fault": fault.message, "code": fault.code, "retryable": fault.retryable}))
        elif chunk.tokens or chunk.finish:
            step = _tokens_step(chunk)
            if chunk.finish:
                step["finish"] = chunk.finish
            self.steps.append((pause, step))
        self._is_finished = chunk.finish is not None

    def add_refusal(self, error: EngineError) -> None:
        """Records that the engine did not admit the job."""
        self.steps = [(0.0, {"refuse": error.message, "code": error.code, "retryable": error.retryable})]

    def add_cancellation(self) -> None:
        """Records that the server ended the job: the client left, or the turn needed no more tokens."""
        if not self._is_finished:
            self.steps.append((0.0, {"ids": [], "finish": "cancelled"}))


def format_toml(value: object) -> str:
    """Returns a value in TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _comment(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_format_key(key)} = {format_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_toml, value)) + "]"
    return str(value)


def _format_table(name: str, table: dict[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {format_toml(value)}" for key, value in table.items()), "\n"])


def _tokens_step(chunk: Chunk) -> dict[str, Any]:
    step: dict[str, Any] = {"ids": list(chunk.tokens)}
    if chunk.logprobs:
        step["logprobs"] = [(entry.logprob, entry.top) for entry in chunk.logprobs]
    return step


def _comment(text: str) -> str:
    """Returns text in quotes, without control characters: they would end a comment, or a string."""
    return escape_line_separators(json.dumps(text, ensure_ascii=False)).replace("\x7f", "\\u007f")


def _format_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _comment(key)


def _drop_none(value: Any) -> Any:
    """Returns a value without null, which TOML does not have."""
    if isinstance(value, dict):
        return {key: _drop_none(each) for key, each in value.items() if each is not None}
    return value
