"""`docs/reference/observability.md` against the program: metrics, options, variables, spans and attributes."""

from opentelemetry.sdk import environment_variables

from antiphon.app.tracing import conventions
from tests.app.observability.every_kind import observe
from tests.observability_page import SPANS, VARIABLES, read_variables, render_page
from tests.syntax import ROOT

PAGE = (ROOT / "docs/reference/observability.md").read_text(encoding="utf-8")
ITEMS = "reasoning, message, function_call NAME, …"
RARE = {
    conventions.ITEMS_OMITTED: "a turn with more than 64 items",
    conventions.CALLS_OMITTED: "a turn with more than 64 calls",
    conventions.TOOL_CALL_ID: "a model that writes ids of calls",
}
"""Attributes that the turns of these tests may lack, and when there is one."""


def find_row(name: str, attributes: set[str]) -> str:
    """Returns the name on the page of a span."""
    if name in SPANS:
        return name
    if conventions.ITEM_ID in attributes:
        return ITEMS
    if name.startswith("embeddings "):
        return "embeddings MODEL"
    if name.startswith("execute_tool "):
        return "execute_tool NAME"
    if conventions.API in attributes:
        return "chat MODEL"
    return "POST /v1/responses"


def test_page_is_that_of_the_program() -> None:
    assert render_page() == PAGE, "run: python -m tests.observability_page > docs/reference/observability.md"


def test_spans_have_the_attributes_of_the_page() -> None:
    seen: dict[str, set[str]] = {}
    for span in observe().spans:
        found = set(span.attributes)
        seen.setdefault(find_row(span.name, found), set()).update(found)
    assert set(seen) == set(SPANS)
    for name, row in SPANS.items():
        listed = set(row.attributes)
        assert seen[name] <= listed, f"{name}: not on the page: {seen[name] - listed}"
        rare = set(RARE) | ({conventions.ERROR_TYPE} if "Generate" in name else set())
        assert listed - seen[name] <= rare, f"{name}: never sent: {listed - seen[name]}"


def test_every_name_is_sent_or_is_content() -> None:
    listed = {attribute for row in SPANS.values() for attribute in row.attributes}
    constants = {key: value for key, value in vars(conventions).items() if key.isupper() and isinstance(value, str)}
    attributes = {value for value in constants.values() if "." in value and not value.startswith("https:")}
    content = {
        conventions.INPUT_MESSAGES,
        conventions.OUTPUT_MESSAGES,
        conventions.SYSTEM_INSTRUCTIONS,
        conventions.TOOL_DEFINITIONS,
        conventions.CONTENT_EVENT,
    }
    assert attributes - content == listed
    assert all(f"`{name}`" in PAGE for name in attributes)


def test_variables_are_those_that_the_program_reads() -> None:
    read_by_the_sdk = {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"}
    assert {name for name in read_variables() if name != "OTEL_EXPORTER_OTLP"} | read_by_the_sdk == set(VARIABLES)
    known = {*vars(environment_variables), "OTEL_TRACES_EXPORTER"}  # the SDK has no constant for that one
    assert set(VARIABLES) <= known
