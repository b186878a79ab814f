"""The names of spans and attributes against the registry of the conventions."""

import importlib
import pkgutil
import re

from opentelemetry import semconv
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating import attributes as incubating

from antiphon.app.tracing import conventions
from tests.syntax import ROOT

PREFIXES = ("gen_ai.", "http.", "url.", "error.", "rpc.", "mcp.")
NOT_IN_THE_REGISTRY = {
    **dict.fromkeys(
        [name for key, name in vars(conventions).items() if key.startswith("LATENCY_")],
        "sent by vLLM and SGLang; there is no convention for the times of a server",
    ),
    conventions.PREVIOUS_RESPONSE: "an OpenAI id that has no convention",
    conventions.CONTENT_EVENT: "an event; the package lists attributes",
}
"""Names with a prefix of the conventions that the registry lacks, and why they are used."""


def read_registry() -> set[str]:
    """Returns the names of all attributes of the installed registry."""
    found = set[str]()
    for package in (stable, incubating):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name))
            found |= {value for key, value in values.items() if key.isupper() and isinstance(value, str)}
    return found


def list_names() -> set[str]:
    names = {value for key, value in vars(conventions).items() if key.isupper() and isinstance(value, str)}
    return {name for name in names if name.startswith(PREFIXES)}


def test_names_are_in_the_registry() -> None:
    registry = read_registry()
    assert len(registry) > 500 and semconv is not None
    unknown = list_names() - registry
    assert unknown == set(NOT_IN_THE_REGISTRY)


def test_own_names_have_the_prefix_of_the_project() -> None:
    dotted = {
        value
        for key, value in vars(conventions).items()
        if key.isupper() and isinstance(value, str) and "." in value and not value.startswith("https:")
    }
    assert {name for name in dotted if not name.startswith(PREFIXES)} == {
        name for name in dotted if name.startswith("antiphon.")
    }


def test_schema_has_a_version() -> None:
    assert re.fullmatch(r"https://opentelemetry\.io/schemas/gen-ai/\d+\.\d+\.\d+", conventions.SCHEMA_URL)


def test_names_are_written_in_one_module() -> None:
    """No other module of the server spells a name of the conventions."""
    pattern = re.compile(r'"gen_ai\.[a-z_]+(?:\.[a-z_]+)*"')
    strays = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in (ROOT / "app").rglob("*.py")
        if path.name != "conventions.py"
        for found in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert not strays
