"""Compares a reply with the expectations of its step, field by field."""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.kit.conformance.exchanges import Exchange
from antiphon.kit.conformance.suites import ExpectedError, LiveStep
from antiphon.kit.conformance.templates import MissingValueError, find_value, join_text, list_calls
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import Json, as_objects, as_text, decode_object

CONTINUED_FIELDS = ("calls", "kinds")
"""Expectations whose result later steps continue."""


CONTENT_FIELDS = ("kinds", "calls", "arguments", "input_pattern", "has_text", "json_keys", "text_pattern")
"""Expectations of the content, which a turn that was cut may lack."""


class StepVerdict:
    """Collects what is wrong with one step: findings, and misses that are the model's."""

    def __init__(self, step: LiveStep, findings: FindingList) -> None:
        self.findings = findings
        self.misses: list[str] = []
        self.is_last = False
        """True if later steps have no meaning, because the model did not do what they continue."""
        self.is_cut = False
        """True if the model did not stop before the limit, so that what is missing would have come later."""
        self._dependent = step.model_dependent

    def report(self, field: str, code: str, expected: str, actual: str, subject: str = "") -> None:
        """Adds a finding, or a miss if `field` depends on the model."""
        if self.is_cut and field in CONTENT_FIELDS:
            self.is_last |= field in CONTINUED_FIELDS
        elif field in self._dependent:
            self.misses.append(f"the model did not give {expected}, but {actual}")
            self.is_last |= field in CONTINUED_FIELDS
        else:
            self.findings.add(code, expected, actual, subject)


def check_expectation(step: LiveStep, exchange: Exchange, earlier: Mapping[int, Json], verdict: StepVerdict) -> None:
    """Checks the value of a successful reply."""
    value, expect = exchange.value, step.expect
    if "output" in value and "status" in value:
        _check_ending(step, exchange, verdict)
        _check_kinds(step, value, verdict)
        _check_calls(step, value, verdict)
        _check_text(step, join_text(value), verdict)
    elif "content" in value and "finish_reason" in value:
        _check_completion(step, value, verdict)
    _check_fields(step, value, verdict)
    if expect.longer_input_than:
        _check_history(expect.longer_input_than, value, earlier, verdict)


def check_error(expected: ExpectedError, error: Mapping[str, Any], verdict: StepVerdict) -> None:
    """Checks the code and the field of an error."""
    code, param = error.get("code"), as_text(error.get("param"))
    if expected.codes and code not in expected.codes:
        verdict.report("error", "http-error-code", " or ".join(expected.codes), quote(code), "error.code")
    if expected.param and not param.startswith(expected.param):
        verdict.report("error", "http-error-param", expected.param, quote(error.get("param")), "error.param")


def _check_ending(step: LiveStep, exchange: Exchange, verdict: StepVerdict) -> None:
    response, expected = exchange.value, step.expect.ending
    status = response.get("status")
    details, error = response.get("incomplete_details"), response.get("error")
    if status == "failed" and isinstance(error, dict) and step.expect.error is not None:
        check_error(step.expect.error, error, verdict)
    verdict.is_cut = status == "completed" and _is_at_limit(exchange)
    if verdict.is_cut and "completed" not in expected:
        verdict.findings.add("live-ending", " or ".join(expected), '"completed" after as many tokens as the limit')
    if status in expected or verdict.is_cut:
        return
    reason = details.get("reason") if isinstance(details, dict) else None
    if status == "incomplete" and reason == "max_output_tokens":
        verdict.is_cut = True
        verdict.misses.append("the model did not stop before max_output_tokens")
    elif status == "failed":
        verdict.report("ending", "live-failed", " or ".join(expected), f"failed: {quote(error)}")
    else:
        verdict.report("ending", "live-ending", " or ".join(expected), quote(status))


def _is_at_limit(exchange: Exchange) -> bool:
    """Returns whether a response has as many tokens as its request allows: a completed one hides that it was cut."""
    usage, limit = exchange.value.get("usage"), exchange.request.get("max_output_tokens")
    count = usage.get("output_tokens") if isinstance(usage, dict) else None
    return isinstance(count, int) and isinstance(limit, int) and count >= limit


def _check_kinds(step: LiveStep, response: Json, verdict: StepVerdict) -> None:
    present = [as_text(item.get("type")) for item in as_objects(response.get("output"))]
    for kind in step.expect.kinds:
        if kind not in present:
            verdict.report("kinds", "live-kind-missing", f"an item {kind}", quote(present), kind)
    for kind in present if step.expect.only_kinds else ():
        if kind not in step.expect.only_kinds:
            allowed = " and ".join(step.expect.only_kinds)
            verdict.report("only_kinds", "live-kind-unexpected", f"items {allowed} only", quote(kind), kind)


def _check_calls(step: LiveStep, response: Json, verdict: StepVerdict) -> None:
    calls, expect = list_calls(response), step.expect
    names = [".".join(filter(None, (as_text(call.get("namespace")), as_text(call.get("name"))))) for call in calls]
    if expect.calls is not None and names != list(expect.calls):
        verdict.report("calls", "live-calls", f"calls {quote(list(expect.calls))}", quote(names))
        return
    for call in calls:
        label = f"{call.get('type')} {call.get('name')}"
        keys = _object_keys(as_text(call.get("arguments"))) if call.get("type") == "function_call" else None
        missing = [key for key in expect.arguments if key not in (keys or ())]
        if missing and call.get("status") != "incomplete" and call.get("type") == "function_call":
            verdict.report(
                "arguments", "live-schema", f"arguments with {quote(missing)}", quote(call.get("arguments")), label
            )
        text = as_text(call.get("input"))
        is_custom = call.get("type") == "custom_tool_call" and call.get("status") != "incomplete"
        if expect.input_pattern and is_custom and not re.fullmatch(expect.input_pattern, text, re.DOTALL):
            verdict.report("input_pattern", "live-grammar", f"an input like {expect.input_pattern}", quote(text), label)


def _check_text(step: LiveStep, text: str, verdict: StepVerdict) -> None:
    expect = step.expect
    if expect.has_text and not text.strip():
        verdict.report("has_text", "live-text-missing", "text", quote(text))
    if expect.text_pattern and not re.search(expect.text_pattern, text, re.DOTALL):
        verdict.report("text_pattern", "live-text-differs", f"text like {expect.text_pattern}", quote(text))
    if expect.json_keys:
        keys = _object_keys(text)
        if keys is None or set(expect.json_keys) - keys:
            expected = f"a JSON object with {quote(list(expect.json_keys))}"
            verdict.report("json_keys", "live-schema", expected, quote(text))


def _check_completion(step: LiveStep, completion: Json, verdict: StepVerdict) -> None:
    if completion["finish_reason"] == "length":
        verdict.is_cut = True
        verdict.misses.append("the model did not stop before max_tokens")
    names = [call["function"]["name"] for call in completion["tool_calls"]]
    if step.expect.calls is not None and names != list(step.expect.calls):
        verdict.report("calls", "live-calls", f"calls {quote(list(step.expect.calls))}", quote(names))
    _check_text(step, as_text(completion["content"]), verdict)


def _check_fields(step: LiveStep, value: Json, verdict: StepVerdict) -> None:
    for path in step.expect.present:
        try:
            if not find_value(value, path):
                verdict.report("present", "live-field", "a value", quote(find_value(value, path)), path)
        except MissingValueError:
            verdict.report("present", "live-field", "a value", "no such field", path)
    for path, expected in step.expect.fields.items():
        try:
            actual = find_value(value, path)
        except MissingValueError:
            verdict.report("fields", "live-field", quote(expected), "no such field", path)
            continue
        if actual != expected:
            verdict.report("fields", "live-field", quote(expected), quote(actual), path)


def _check_history(number: int, value: Json, earlier: Mapping[int, Json], verdict: StepVerdict) -> None:
    try:
        before = find_value(earlier.get(number), "usage.input_tokens")
        after = find_value(value, "usage.input_tokens")
    except MissingValueError:
        return  # the missing usage has been reported
    if isinstance(before, int) and isinstance(after, int) and after <= before:
        verdict.report("longer_input_than", "live-history-lost", f"more than {before} input tokens", str(after))


def _object_keys(text: str) -> set[str] | None:
    value = decode_object(text)
    return None if value is None else set(value)
