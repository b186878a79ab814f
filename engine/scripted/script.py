"""The script file of the scripted engine: its replies, the prompts that each answers, and their output.

A script is TOML with one `[[reply]]` per turn; `engine/scripted/engine.py` plays it. This module does not tokenize
text (the engine has an encoder) and keeps no time (a pause is a number).

    [[reply]]
    name = "weather"              # required, unique
    when = ["weather", "Oslo"]    # matches prompts that contain all of these; default: the next unmatched job
    prompt = "sha256:…"           # matches exactly one prompt, by `prompt_key` of its token ids; precedes `when`
    output = [                    # in order; each entry is encoded separately
      "It is",                    # text
      {pause = 0.5},              # seconds without output
      {ids = [5, 6]},             # token ids, passed through
      {media = true},             # text about the pictures of the job, such as "1 image: 16 tokens of 3072 bytes"
      {ids = [7], finish = "stop", logprobs = [[-0.1, [[7, -0.1], [8, -2.5]]]]},  # as recorded: see below
      {fault = "boom", code = "server_error", retryable = true},   # the turn ends here with an error
      {stall = true},             # no output until the job is cancelled
      {refuse = "full", code = "server_is_overloaded"},            # first entry only: the job is not admitted
    ]
    tokens_per_chunk = 1          # 0: one chunk per entry. A chunk never spans two entries
    finish = "stop"               # or "length"
    stop_id = 7                   # token that ends the turn; default: the first of the engine's eos_ids, if any
    cached_tokens = 0             # prompt tokens to report as read from the cache
    fault = {kind = "cut"}        # fault of the reply over HTTP; docs/reference/faults.md lists the kinds

`antiphon serve --record FILE` writes such a script, with a table `[recording]` before the replies. Its ids have
`finish` where the engine ended the turn (`stop`, `length`, `repetition` or `cancelled`), and `logprobs` if the client
asked for them: per token its log-probability, and (id, log-probability) of the most likely ones.
"""

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.engine.protocol import EngineInfo


class ScriptError(ValueError):
    """Raised for a script that cannot be played; the message is one line and names the entry."""


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of `output` that is not plain text: exactly one of ids, media, pause, stall, fault, refuse."""

    ids: tuple[int, ...] | None = None
    finish: Literal["stop", "length", "repetition", "cancelled"] | None = None
    logprobs: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = ()
    media: bool = False
    pause: float | None = None
    stall: bool = False
    fault: str | None = None
    refuse: str | None = None
    code: str = "server_error"
    retryable: bool = False

    def __post_init__(self) -> None:
        kinds = [self.ids, self.media or None, self.pause, self.stall or None, self.fault, self.refuse]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("needs exactly one of ids, media, pause, stall, fault, refuse")
        if self.pause is not None and self.pause < 0:
            raise ValueError("pause must not be negative")
        if self.ids is None and (self.finish or self.logprobs):
            raise ValueError("finish and logprobs belong to ids")
        if self.logprobs and len(self.logprobs) != len(self.ids or ()):
            raise ValueError("logprobs needs one entry per id")
        if self.ids is not None and any(token < 0 for token in self.ids):
            raise ValueError("ids must not be negative")


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted turn; its fields are those of the file, as this module's docstring lists them."""

    name: str
    output: tuple[str | ScriptStep, ...]
    when: tuple[str, ...] = ()
    prompt: str = ""
    tokens_per_chunk: int = 1
    finish: Literal["stop", "length"] = "stop"
    stop_id: int | None = None
    cached_tokens: int = 0
    fault: dict[str, Any] | None = None
    """Fault of the reply over HTTP, which the server applies; the engine does not read it."""

    def __post_init__(self) -> None:
        if self.tokens_per_chunk < 0:
            raise ValueError("tokens_per_chunk must not be negative")
        if any(isinstance(entry, ScriptStep) and entry.refuse is not None for entry in self.output[1:]):
            raise ValueError("refuse can only be the first entry of output")

    @property
    def shows_media(self) -> bool:
        """True if the output tells what pictures the job has."""
        return any(isinstance(entry, ScriptStep) and entry.media for entry in self.output)

    @property
    def refusal(self) -> ScriptStep | None:
        """The first entry, if it rejects the job."""
        first = self.output[0] if self.output else None
        return first if isinstance(first, ScriptStep) and first.refuse is not None else None


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[recording]` of a recorded script: the model that the token ids belong to."""

    model: str
    dialect: str
    engine: EngineInfo
    tokenizer: str = ""
    """Folder or hub id; `embedded` for the embedded model. Empty: the byte vocabulary of the dialect."""
    revision: str | None = None
    """Branch, tag or commit of a tokenizer of the hub."""
    chat_template: str | None = None
    """Source of the chat template, if it was not the model's own."""
    pause_scale: float = 1.0
    """Factor for all pauses. 0: none."""

    def __post_init__(self) -> None:
        if self.pause_scale < 0:
            raise ValueError("pause_scale must not be negative")


def prompt_key(tokens: Sequence[int]) -> str:
    """Returns the key by which a recorded reply names its prompt: a hash of the token ids."""
    return "sha256:" + hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def load_script(path: str | Path) -> tuple[ScriptedReply, ...]:
    """Reads the replies of a TOML script, in file order. Raises `ScriptError`."""
    return parse_script(_read_table(path), str(path))


def load_recording(path: str | Path) -> Recording | None:
    """Reads the table `[recording]` of a script; None if it has none. Raises `ScriptError`."""
    table = _read_table(path).get("recording")
    try:
        return None if table is None else msgspec.convert(table, Recording, str_keys=True)
    except msgspec.ValidationError as error:
        raise ScriptError(f"{path}: recording: {error}") from error


def _read_table(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: not TOML: {error}") from error


def parse_script(table: dict[str, Any], origin: str = "script") -> tuple[ScriptedReply, ...]:
    """Returns the replies of a script parsed as TOML. Raises `ScriptError`, which begins with `origin`."""
    unknown = sorted(set(table) - {"reply", "recording"})
    if unknown:
        raise ScriptError(f"{origin}: unknown key {unknown[0]!r}: a script holds [[reply]] tables only")
    entries = table.get("reply")
    if not isinstance(entries, list) or not entries:
        raise ScriptError(f"{origin}: no [[reply]]: a script holds at least one")
    replies = tuple(_parse_reply(entry, index, origin) for index, entry in enumerate(entries, 1))
    names = [reply.name for reply in replies]
    for index, name in enumerate(names, 1):
        if name in names[: index - 1]:
            raise ScriptError(f"{origin}: reply {index} ({name!r}): the name is taken by reply {names.index(name) + 1}")
    return replies


def _parse_reply(entry: Any, index: int, origin: str) -> ScriptedReply:
    name = entry.get("name") if isinstance(entry, dict) else None
    label = f"{origin}: reply {index}" + (f" ({name!r})" if isinstance(name, str) else "")
    if isinstance(entry, dict) and isinstance(entry.get("when"), str):
        entry = {**entry, "when": [entry["when"]]}
    if isinstance(entry, dict) and "speak" in entry and "output" not in entry:  # its former name
        entry = {("output" if key == "speak" else key): value for key, value in entry.items()}
    try:
        return msgspec.convert(entry, ScriptedReply)
    except msgspec.ValidationError as error:
        raise ScriptError(f"{label}: {error}") from error
