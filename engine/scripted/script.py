"""The script file of the scripted engine: its replies, the prompts that each answers, and their output.

A script is TOML with one ``[[reply]]`` per turn; ``engine/scripted/engine.py`` plays it. This module does not tokenize
text (the engine has an encoder) and keeps no time (a pause is a number).

    [[reply]]
    name = "weather"              # required, unique
    when = ["weather", "Oslo"]    # matches prompts that contain all of these; default: the next unmatched job
    output = [                    # in order; each entry is encoded separately
      "It is",                    # text
      {pause = 0.5},              # seconds without output
      {ids = [5, 6]},             # token ids, passed through
      {fault = "boom", code = "server_error", retryable = true},   # the turn ends here with an error
      {stall = true},             # no output until the job is cancelled
      {refuse = "full", code = "server_is_overloaded"},            # first entry only: the job is not admitted
    ]
    tokens_per_chunk = 1          # 0: one chunk per entry. A chunk never spans two entries
    finish = "stop"               # or "length"
    stop_id = 7                   # token that ends the turn; default: the first of the engine's eos_ids, if any
    cached_tokens = 0             # prompt tokens to report as read from the cache
    fault = {kind = "cut"}        # fault of the reply over HTTP; docs/faults.md lists the kinds
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec


class ScriptError(ValueError):
    """Raised for a script that cannot be played; the message is one line and names the entry."""


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of ``output`` that is not plain text: exactly one of ids, pause, stall, fault, refuse."""

    ids: tuple[int, ...] | None = None
    pause: float | None = None
    stall: bool = False
    fault: str | None = None
    refuse: str | None = None
    code: str = "server_error"
    retryable: bool = False

    def __post_init__(self) -> None:
        kinds = [self.ids, self.pause, self.stall or None, self.fault, self.refuse]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("needs exactly one of ids, pause, stall, fault, refuse")
        if self.pause is not None and self.pause < 0:
            raise ValueError("pause must not be negative")
        if self.ids is not None and any(token < 0 for token in self.ids):
            raise ValueError("ids must not be negative")


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted turn; its fields are those of the file, as this module's docstring lists them."""

    name: str
    output: tuple[str | ScriptStep, ...]
    when: tuple[str, ...] = ()
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
    def refusal(self) -> ScriptStep | None:
        """The first entry, if it rejects the job."""
        first = self.output[0] if self.output else None
        return first if isinstance(first, ScriptStep) and first.refuse is not None else None


def load_script(path: str | Path) -> tuple[ScriptedReply, ...]:
    """Reads the replies of a TOML script, in file order. Raises :class:`ScriptError`."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: not TOML: {error}") from error
    return parse_script(table, str(path))


def parse_script(table: dict[str, Any], origin: str = "script") -> tuple[ScriptedReply, ...]:
    """Returns the replies of a script parsed as TOML. Raises :class:`ScriptError`, which begins with ``origin``."""
    unknown = sorted(set(table) - {"reply"})
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
