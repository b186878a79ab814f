"""Suites of cases for a running server, read from `kit/suites/NAME.toml`.

A case is a list of steps. A step is one request and what its reply must be. Texts of a step may refer to values of
earlier steps, see `templates.py`.
"""

import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

SUITE_NAMES = ("basics", "tools", "structured", "errors", "resume", "conversations", "websocket", "codex", "hosted")
Capability = Literal[
    "background",
    "chat",
    "compaction",
    "conversations",
    "images",
    "logprobs",
    "mcp",
    "models",
    "ollama",
    "store",
    "tools",
    "websocket",
    "zstd",
]


class SuiteError(ValueError):
    """Raised for a suite or a case that does not exist or cannot be read."""


class ExpectedError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error that a step must get. An empty value is not checked."""

    codes: tuple[str, ...] = ()
    param: str = ""
    """Start of the path of the field at fault."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Expectations of the reply to a step. A value that is left out is not checked."""

    status: tuple[int, ...] = (200,)
    error: ExpectedError | None = None
    """The error in the body of a status from 400, or of a failed response."""
    ending: tuple[str, ...] = ("completed",)
    """Statuses that the response may end with."""
    kinds: tuple[str, ...] = ()
    """Kinds of items that the output must have."""
    only_kinds: tuple[str, ...] = ()
    """Kinds of items that the output may have. Empty: all."""
    calls: tuple[str, ...] | None = None
    """Names of the calls in order, `NAMESPACE.NAME` with a namespace."""
    arguments: tuple[str, ...] = ()
    """Keys that the arguments of each call must have."""
    input_pattern: str = ""
    """Regular expression that the input of each custom call must match as a whole."""
    has_text: bool = False
    """The text of the messages must have more than white space."""
    json_keys: tuple[str, ...] = ()
    """Keys of the JSON object that the text of the messages must be."""
    text_pattern: str = ""
    """Regular expression that the text of the messages must contain."""
    present: tuple[str, ...] = ()
    """Paths of the reply that must have a value other than null, false, 0 and empty."""
    fields: dict[str, Any] = {}
    """Values at paths of the reply."""
    longer_input_than: int = 0
    """Number of an earlier step whose response must have fewer input tokens than this one."""


class LiveStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a case."""

    transport: Literal["http", "websocket"] = "http"
    method: Literal["GET", "POST", "DELETE"] = "POST"
    path: str = "/responses"
    """Path after the base URL; with `root`, after the host."""
    root: bool = False
    body: dict[str, Any] | None = None
    raw: str | None = None
    """Body, or WebSocket message, that is sent as it stands."""
    omit: tuple[str, ...] = ()
    """Defaults of the suite that this step does not send."""
    headers: dict[str, str] = {}
    zstd: bool = False
    """The body is sent with `Content-Encoding: zstd`."""
    drops: bool = False
    """The client closes the connection without reading the reply."""
    expect: Expectation = Expectation()
    checks: tuple[str, ...] = ()
    """Names of further checks, see `checks/registry.py`."""
    model_dependent: tuple[str, ...] = ()
    """Fields of `expect` that a weak model may miss; such a miss is no fault of the server."""
    lenient_status: tuple[int, ...] = ()
    """Statuses that say that the server cannot do this, beside those of every capability."""


class LiveCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A situation, as steps that follow one another. `needs` are capabilities that a server may lack."""

    id: str
    title: str
    client: str = ""
    """Behavior of the real client when this goes wrong, in one line."""
    needs: tuple[Capability, ...] = ()
    step: tuple[LiveStep, ...]


class SuiteDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every generating request of a suite whose own body does not have the key."""

    body: dict[str, Any] = {}
    headers: dict[str, str] = {}


class CaseSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named list of cases."""

    name: str
    title: str
    defaults: SuiteDefaults = SuiteDefaults()
    tools: dict[str, dict[str, Any]] = {}
    """Tools by a name, to which the `tools` of a body refer by that name."""
    case: tuple[LiveCase, ...]


@cache
def load_suite(name: str) -> CaseSuite:
    """Returns a suite of the kit. Raises `SuiteError`."""
    if name not in SUITE_NAMES:
        raise SuiteError(f"there is no suite {name!r}: use one of {', '.join(SUITE_NAMES)}")
    text = resources.files("antiphon.kit").joinpath("suites", f"{name}.toml").read_text(encoding="utf-8")
    return parse_suite(name, text)


def parse_suite(name: str, text: str) -> CaseSuite:
    """Returns the suite of a TOML text. Raises `SuiteError`."""
    try:
        suite = msgspec.convert({"name": name} | tomllib.loads(text), CaseSuite)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SuiteError(f"suite {name}: {error}") from error
    ids = [case.id for case in suite.case]
    if repeated := {each for each in ids if ids.count(each) > 1}:
        raise SuiteError(f"suite {name}: the id {min(repeated)!r} is used twice")
    return suite


def select_cases(suites: tuple[str, ...], ids: tuple[str, ...]) -> list[tuple[CaseSuite, LiveCase]]:
    """Returns the cases of the suites, all if there are none, with these ids (`SUITE.ID` or `ID`), or all."""
    chosen = [(suite, case) for suite in map(load_suite, suites or SUITE_NAMES) for case in suite.case]
    if not ids:
        return chosen
    selected = [(suite, case) for suite, case in chosen if case.id in ids or f"{suite.name}.{case.id}" in ids]
    known = {name for suite, case in selected for name in (case.id, f"{suite.name}.{case.id}")}
    if unknown := [each for each in ids if each not in known]:
        raise SuiteError(f"there is no case {unknown[0]!r} in the chosen suites: `antiphon check --list` lists them")
    return selected
