"""Items of hosted tools in a conversation, and the formats that write them."""

from functools import cache
from typing import Any

from antiphon.engine.embedded import MODEL_DIR
from antiphon.events.hosted_inputs import (
    InputMcpCall,
)
from antiphon.events.inputs import InputMessage
from antiphon.harmony.detection import detect
from antiphon.harmony.format import ModelFormat
from tests.harmony import parser_helpers

USER = InputMessage(role="user", content="Roll.")

ANSWER = InputMessage(role="assistant", content="Rolled.")


def mcp_call(**fields: Any) -> InputMcpCall:
    return InputMcpCall(**{"id": "mcp_1", "server_label": "dice", "name": "roll", "arguments": '{"n": 2}', **fields})


@cache
def load_format(name: str) -> ModelFormat:
    if name == "embedded":
        return detect.load_format(MODEL_DIR).format
    return parser_helpers.load_token_format(name)
