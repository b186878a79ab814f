"""The tools that a `tool_choice` names: plain ones, those of a namespace, and those that the input adds."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.tool_choice import read_tool_choice
from tests.app.requests.request_builders import read_chat_spec, read_responses_spec, summarize_error


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}


def custom(name: str) -> dict[str, Any]:
    return {"type": "custom", "name": name}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "Tools.", "tools": list(tools)}


def chosen(kind: str, name: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **more}


JOBS = namespace("jobs", function("spawn"), function("list"), custom("patch"))
CREW = namespace("crew", function("spawn"), function("patch"))
PLAIN = [function("spawn"), function("jobs__list"), custom("note")]

CHOICES: list[tuple[dict[str, Any], list[dict[str, Any]], str]] = [
    # Each of two namespaces with the same name of a tool, in both orders
    (chosen("function", "spawn", namespace="jobs"), [JOBS, CREW], "jobs__spawn"),
    (chosen("function", "spawn", namespace="crew"), [JOBS, CREW], "crew__spawn"),
    # Without a namespace: the plain tool, else the only one of that type and name
    (chosen("function", "spawn"), [JOBS, *PLAIN], "spawn"),
    (chosen("function", "spawn", namespace=None), [*PLAIN, JOBS], "spawn"),
    (chosen("function", "spawn"), [JOBS], "jobs__spawn"),
    (chosen("function", "patch"), [JOBS, CREW], "crew__patch"),
    (chosen("custom", "patch"), [JOBS, CREW], "jobs__patch"),
    (chosen("custom", "patch", namespace="jobs"), [JOBS, CREW], "jobs__patch"),
    (chosen("custom", "note"), PLAIN, "note"),
    # The flat name, unless a plain tool has it
    (chosen("function", "crew__spawn"), [JOBS, CREW], "crew__spawn"),
    (chosen("custom", "jobs__patch"), [JOBS, CREW], "jobs__patch"),
    (chosen("function", "jobs__list"), [JOBS, *PLAIN], "jobs__list"),
]


@pytest.mark.parametrize(("choice", "tools", "model_name"), CHOICES)
@pytest.mark.parametrize("form", ["named", "allowed_tools"])
def test_chosen_tool_is_the_one_that_is_named(
    form: str, choice: dict[str, Any], tools: list[dict[str, Any]], model_name: str
) -> None:
    sent = choice if form == "named" else {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    spec = read_responses_spec(tools=tools, tool_choice=sent)
    assert (spec.prompt_input.tool_choice, spec.prompt_input.allowed_tools) == ("required", {model_name})
    assert spec.base_response.tool_choice == sent, "echoed as sent"


NOT_FOUND = "not found in 'tools' parameter"
INVALID_CHOICES: list[tuple[dict[str, Any], list[dict[str, Any]], str | None, str, str]] = [
    (chosen("function", "spawn"), [JOBS, CREW], "invalid_value", "tool_choice", "namespaces 'jobs', 'crew'"),
    (chosen("function", "spawn", namespace="club"), [JOBS, CREW], "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("function", "spawn", namespace="jobs"), PLAIN, "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("function", "jobs"), [JOBS], "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("custom", "spawn", namespace="jobs"), [JOBS], "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("custom", "jobs__list"), [JOBS, *PLAIN], "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("function", "crew__spawn", namespace="crew"), [CREW], "invalid_value", "tool_choice", NOT_FOUND),
    (chosen("function", "spawn", namespace=5), [JOBS], "invalid_type", "tool_choice.namespace", "string"),
    (chosen("function", 5, namespace="jobs"), [JOBS], "invalid_type", "tool_choice.name", "string"),
    (chosen("function", "a\nb"), [JOBS], "invalid_value", "tool_choice.name", "pattern"),
    ({"type": "function", "namespace": "jobs"}, [JOBS], "missing_required_parameter", "tool_choice.name", "name"),
]


@pytest.mark.parametrize(("choice", "tools", "code", "param", "message"), INVALID_CHOICES)
def test_tool_that_cannot_be_chosen_is_refused(
    choice: dict[str, Any], tools: list[dict[str, Any]], code: str | None, param: str, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(tools=tools, tool_choice=choice)
    assert summarize_error(caught.value) == (400, code, param)
    assert message in caught.value.message


def test_fault_of_an_allowed_tool_names_its_place() -> None:
    allowed = [chosen("function", "spawn", namespace="jobs"), chosen("function", "list", namespace=5)]
    with pytest.raises(ApiError) as caught:
        read_responses_spec(tools=[JOBS], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed})
    assert summarize_error(caught.value) == (400, "invalid_type", "tool_choice.tools[1].namespace")


@pytest.mark.parametrize(
    "choice", ["required", chosen("function", "spawn", namespace="jobs"), chosen("custom", "note")]
)
def test_tools_of_the_input_can_be_chosen(choice: Any) -> None:
    added = {"type": "additional_tools", "tools": [JOBS, custom("note")]}
    spec = read_responses_spec(input=[added, {"role": "user", "content": "hi"}], tool_choice=choice)
    assert spec.prompt_input.tool_choice == "required"
    assert spec.base_response.tools == ()


@pytest.mark.parametrize("mode", ["auto", "none", "required", None])
def test_mode_allows_all_tools(mode: str | None) -> None:
    spec = read_responses_spec(tools=PLAIN, tool_choice=mode)
    assert (spec.prompt_input.tool_choice, spec.prompt_input.allowed_tools) == (mode or "auto", None)


def test_tools_that_run_elsewhere_count_as_tools_and_are_not_offered() -> None:
    search = {"type": "web_search"}
    assert read_responses_spec(tools=[search], tool_choice="required").prompt_input.tool_choice == "required"
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [search, chosen("custom", "note")]}
    hosted_tools = read_responses_spec(tools=[search, *PLAIN], tool_choice=choice).hosted_tools
    assert hosted_tools is not None and hosted_tools.tool_choice == choice, "read when the server knows its tools"
    tool_choice = read_tool_choice(choice, hosted_tools.client_tools)
    assert (tool_choice.mode, tool_choice.allowed_tools) == ("auto", {"note"})


def test_unknown_tool_is_reported_before_an_unsupported_field() -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_spec(tool_choice=chosen("function", "spawn"), modalities=["audio"])
    assert summarize_error(caught.value) == (400, "invalid_value", "tool_choice")


@pytest.mark.parametrize(("length", "param"), [(128, "tool_choice"), (129, "tool_choice.name")])
def test_name_may_be_as_long_as_one_with_a_namespace(length: int, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(tools=PLAIN, tool_choice=chosen("function", "a" * length))
    assert summarize_error(caught.value) == (400, "invalid_value", param)
