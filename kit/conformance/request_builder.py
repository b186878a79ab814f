"""Bodies of requests: a step's own, with the defaults of its suite, its tools by name, and its templates filled."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.kit.conformance.exchanges import CHAT_PATH, RESPONSES_PATH
from antiphon.kit.conformance.suites import CaseSuite, LiveCase, LiveStep
from antiphon.kit.conformance.templates import fill_templates, step_scope
from antiphon.kit.json_values import Json

LONG_TEXT_WORDS = 150_000
"""Words of a text that is longer than the context, if the server does not say how long its context is."""
MAX_LONG_TEXT_CHARS = 10_000_000
"""The API accepts no longer text."""
GENERATING_PATHS = (RESPONSES_PATH, CHAT_PATH)


class BodyBuilder:
    """Builds the requests of all cases for one model.

    `max_output_tokens` takes the place of the suites' limit. A limit of a case's own stays: the case is about it.
    """

    def __init__(
        self,
        model: str,
        context_length: int | None,
        max_output_tokens: int | None = None,
        mcp_label: str | None = None,
    ) -> None:
        self._model, self._max_output_tokens = model, max_output_tokens
        self.mcp_label = mcp_label
        """Label of an MCP server that the server under check knows; None: cases that need one cannot run."""
        self._long_words = LONG_TEXT_WORDS if context_length is None else context_length + 1000

    def build(
        self, suite: CaseSuite, case: LiveCase, number: int, step: LiveStep, values: Mapping[int, Json]
    ) -> tuple[LiveStep, Json]:
        """Returns the step with its templates filled, and its body. Raises `MissingValueError`."""
        marker = case_marker(suite, case, number)
        scope: Json = {f"step{earlier}": step_scope(value, marker) for earlier, value in values.items()}
        scope |= {"model": self._model, "mcp_label": self.mcp_label, "marker": marker}
        if "{long_text}" in str(step.body):
            scope["long_text"] = " ".join(["word"] * self._long_words)[:MAX_LONG_TEXT_CHARS]
        filled = msgspec.structs.replace(
            step,
            path=fill_templates(step.path, scope),
            raw=fill_templates(step.raw, scope),
            expect=msgspec.structs.replace(step.expect, fields=fill_templates(step.expect.fields, scope)),
        )
        body = fill_tools(self._with_defaults(suite, step), suite)
        return filled, fill_templates(body, scope)

    def _with_defaults(self, suite: CaseSuite, step: LiveStep) -> Json:
        """Returns the body with what every generating request has."""
        own = step.body or {}
        if step.path not in GENERATING_PATHS:
            return own
        defaults = {"model": "{model}"} | suite.defaults.body
        if step.transport == "http":
            defaults["stream"] = True
        omitted = set(step.omit)
        if self._max_output_tokens is not None:
            defaults["max_output_tokens"] = self._max_output_tokens
            omitted.discard("max_output_tokens")
        if step.path == CHAT_PATH and "max_output_tokens" in defaults:
            defaults["max_tokens"] = defaults.pop("max_output_tokens")
        return {key: value for key, value in (defaults | own).items() if key not in omitted}


def case_marker(suite: CaseSuite, case: LiveCase, number: int) -> str:
    """Returns the text that names a step in its prompt."""
    return f"({suite.name}.{case.id}.{number})"


def fill_tools(body: Json, suite: CaseSuite) -> Json:
    """Returns the body with the suite's tools in the place of their names."""

    def find_tool(tool: Any) -> Any:
        if isinstance(tool, str):
            tool = suite.tools[tool]
        if isinstance(tool, dict) and isinstance(tool.get("tools"), list):
            return tool | {"tools": [find_tool(leaf) for leaf in tool["tools"]]}
        return tool

    filled = dict(body)
    if isinstance(body.get("tools"), list):
        filled["tools"] = [find_tool(tool) for tool in body["tools"]]
    if isinstance(body.get("input"), list):
        filled["input"] = [
            find_tool(item) if isinstance(item, dict) and item.get("type") == "additional_tools" else item
            for item in body["input"]
        ]
    return filled
