"""Fields that decide when the engine runs a request: `service_tier`, and `priority` of vLLM's API."""

from collections.abc import Mapping
from typing import Any

import pytest

from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.engine.protocol import Capabilities
from tests.app.requests.request_builders import make_registry

FLEX, PLAIN = ("flex", -50), ("default", 0)
TIERS = {tier: PLAIN for tier in (None, "auto", "default", "priority", "fast", "ultrafast", "scale")} | {"flex": FLEX}
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
