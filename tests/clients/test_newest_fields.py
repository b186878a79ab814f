"""The request fields of the newest openai SDK: each is known by name, and its replies have the SDK's types."""

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.fields import list_fields
from antiphon.app.requests.responses.body import ResponsesBody
from tests.app.requests.request_builders import read_responses_spec
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.serving import serve
from tests.syntax import ROOT

WITHOUT_STRUCT = {"image", "prompt", "moderation", "access_programs", "tool_choice", "tools", "input"}
"""Objects that are refused as a whole, and those whose keys other modules read."""
SCRIPT: list[dict[str, Any]] = [
    {"name": "cached", "when": ["Cached"], "output": ["Yes."], "cached_tokens": 100_000},
    {"name": "any", "output": ["No."]},
]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Output of the SDK's program."""
    python = install_python_clients("python")
    with serve(SCRIPT) as server:
        yield run_program([python, PROGRAMS_FOLDER / "openai_params.py", server.url], tmp_path_factory.mktemp("sdk"))


def find_error(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns code and param of the error that a body gets; two times None if it is valid."""
    try:
        read_responses_spec(**body)
    except ApiError as error:
        return error.code, error.param
    return None, None


@pytest.mark.timeout(600)  # the first run installs packages
def test_no_field_of_the_sdk_is_unknown(sdk: dict[str, Any]) -> None:
    assert len(sdk["fields"]) > 30
    ours = {field.name: field.rule.handling for field in list_fields(ResponsesBody)}
    assert sdk["fields"].keys() <= ours.keys()
    page = (ROOT / "docs/reference/fields.md").read_text(encoding="utf-8")
    for name in sdk["fields"]:
        assert f"| `{name}` | {ours[name]} |" in page
        code, param = find_error({name: {"unlikely": 1}})
        assert code != "unknown_parameter" or param == f"{name}.unlikely", name
        if ours[name] == "refused":
            assert (code, param) == ("unsupported_parameter", name)


@pytest.mark.timeout(600)
def test_no_key_of_a_field_is_unknown(sdk: dict[str, Any]) -> None:
    nested = {name: keys for name, keys in sdk["fields"].items() if keys and name not in WITHOUT_STRUCT}
    assert {"background_options", "context_management", "prompt_cache_options", "reasoning", "text"} <= nested.keys()
    for name, keys in nested.items():
        for key in keys:
            value: Any = {key: [{"unlikely": 1}]}
            code, param = find_error({name: [value] if name == "context_management" else value, "stream": True})
            assert code != "unknown_parameter" or param not in (f"{name}.{key}", f"{name}[0].{key}"), (name, key)


@pytest.mark.timeout(600)
def test_sdk_reads_the_replies_as_its_types(sdk: dict[str, Any]) -> None:
    prefix = "PromptCacheDiagnostics"
    assert sdk["replies"] == {
        "tier": "flex",
        "effort": ["low", "low"],
        "warm": ["completed", [], {"mode": "implicit", "ttl": "12h"}],
        "late": "queued",
        "diagnostics": [
            f"{prefix}{kind}"
            for kind in ("Unavailable", "CacheMiss", "CacheMiss", "ComparisonResponseNotFound", "CacheHit")
        ],
        "items": ["ResponseConfigurationUpdateItem", "ResponseInputMessageItem"],
    }
