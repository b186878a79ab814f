"""Fields that decide when the engine runs a request: `service_tier`, `background_options`, and vLLM's `priority`."""

from collections.abc import Mapping
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.engine.protocol import Capabilities
from tests.app.requests.request_builders import make_registry, read_responses_spec, summarize_error

FLEX, PLAIN = ("flex", -50), ("default", 0)
TIERS = dict.fromkeys((None, "auto", "default", "priority", "fast", "ultrafast", "scale"), PLAIN) | {"flex": FLEX}
NO_PRIORITY = Capabilities(priority=False)


def read_spec(api: str, sent: Mapping[str, Any], capabilities: Capabilities = Capabilities()) -> TurnSpec:  # noqa: B008
    registry = make_registry(capabilities)
    if api == "chat":
        messages = [{"role": "user", "content": "hi"}]
        return read_chat_request({"model": "tiny", "messages": messages, **sent}, registry).spec
    return read_responses_request({"model": "tiny", "input": "hi", **sent}, registry).spec


def read_order(api: str, sent: Mapping[str, Any], capabilities: Capabilities = Capabilities()) -> tuple[Any, int]:  # noqa: B008
    """Returns the tier of the Response and the engine's priority."""
    spec = read_spec(api, sent, capabilities)
    return spec.base_response.service_tier, spec.priority


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize(("tier", "expected"), TIERS.items())
def test_only_flex_differs_from_the_default_tier(api: str, tier: str | None, expected: tuple[str, int]) -> None:
    assert read_order(api, {"service_tier": tier}) == expected


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_flex_is_accepted_as_default_by_an_engine_without_priorities(api: str) -> None:
    assert read_order(api, {"service_tier": "flex"}, NO_PRIORITY) == PLAIN


@pytest.mark.parametrize(
    ("priority", "tier", "expected"), [(4, "flex", -50), (80, "flex", -80), (0, "flex", -50), (4, "auto", -4)]
)
def test_lower_priority_counts(priority: int, tier: str, expected: int) -> None:
    assert read_spec("chat", {"service_tier": tier, "priority": priority}).priority == expected


@pytest.mark.parametrize(
    ("window", "tier", "expected"),
    [
        ("soonest", "auto", 0),
        ("soonest", "flex", -50),
        ("2h", "auto", -100),
        ("8h", "auto", -100),
        ("2h", "flex", -100),
    ],
)
def test_late_windows_run_after_all_others(window: str, tier: str, expected: int) -> None:
    sent = {"background": True, "background_options": {"completion_window": window}, "service_tier": tier}
    assert read_spec("responses", sent).priority == expected
    assert read_spec("responses", sent, NO_PRIORITY).priority == 0


@pytest.mark.parametrize(
    "sent", [{}, {"completion_window": None}, {"completion_window": "soonest"}, {"continuation_id": "c" * 256}]
)
@pytest.mark.parametrize("background", [None, True])
def test_other_background_options_are_accepted_anywhere(sent: dict[str, Any], background: bool | None) -> None:
    spec = read_responses_spec(background_options=sent, background=background)
    assert spec.priority == 0
    read_responses_spec(background_options=sent, background=background, stream=True)


WINDOW = "background_options.completion_window"


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        ({"background_options": {"completion_window": "2h"}}, "invalid_value", WINDOW),
        ({"background_options": {"completion_window": "8h"}, "background": False}, "invalid_value", WINDOW),
        ({"background_options": {"completion_window": "8h"}, "background": True, "stream": True}, "invalid_value", WINDOW),
        ({"background_options": {"completion_window": "24h"}, "background": True}, "invalid_value", WINDOW),
        ({"background_options": {"continuation_id": "c" * 257}}, "string_above_max_length", "background_options.continuation_id"),
        ({"background_options": {"window": "2h"}}, "unknown_parameter", "background_options.window"),
        ({"background_options": "2h"}, "invalid_type", "background_options"),
    ],
)  # fmt: skip
def test_invalid_background_options_are_named(sent: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(**sent)
    assert summarize_error(caught.value) == (400, code, param)
