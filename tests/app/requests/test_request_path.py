"""The modules that a Responses request visits on its way to a `TurnSpec`, as `app/requests/README.md` lists them."""

import re
import sys
from types import FrameType
from typing import Any

import msgspec

from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.responses.request import read_responses_request
from tests.app.requests.request_builders import FakeHistory, make_registry
from tests.syntax import PACKAGES, ROOT

MAX_STAYS, MAX_RETURNS = 25, 9
PATH = re.compile(r"```path\n(.*?)```", re.DOTALL)


def record_calls(function: Any, *values: Any) -> list[str]:
    """Returns the modules of this project that a call enters, in order; a module that calls itself is named once."""
    modules = [f"{package}/" for package in PACKAGES]
    stays: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        _, found, path = frame.f_code.co_filename.rpartition("/antiphon/")
        if event == "call" and found and path.startswith(tuple(modules)) and (not stays or stays[-1] != path):
            stays.append(path)

    sys.setprofile(note)
    try:
        function(*values)
    finally:
        sys.setprofile(None)
    return stays


def test_path_of_a_request_is_short_and_documented() -> None:
    body = msgspec.json.encode({"model": "tiny", "input": "hi", "instructions": "Be brief.", "stream": True})
    registry, history = make_registry(), FakeHistory({})

    def read() -> None:
        read_responses_request(parse_object(body), registry, history)

    read()  # what is built once, at the first request, is no part of the path
    stays = record_calls(read)
    assert len(stays) <= MAX_STAYS
    assert len(stays) - len(set(stays)) <= MAX_RETURNS
    found = PATH.search((ROOT / "app/requests/README.md").read_text(encoding="utf-8"))
    assert found is not None
    shown = [line.split()[0] for line in found[1].splitlines() if line.strip()]
    assert shown == [stay.removeprefix("app/requests/") for stay in stays]
