"""The reasoning effort in the variables that real templates read."""

import pytest

from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from tests.harmony import parser_helpers

KIMI_K3 = """{% if thinking_effort is undefined %}{% set thinking_effort = "max" %}{% endif %}
{%- if thinking and thinking_effort not in ["low", "high", "max"] %}{{ raise_exception("effort") }}{% endif %}
{{- thinking ~ " " ~ thinking_effort }}"""
MINIMAX_M3 = (
    """{%- if thinking_mode is defined and thinking_mode == "disabled" %}off{% else %}{{ thinking_mode }}{% endif %}"""
)
COHERE = (
    """{%- set reasoning = reasoning if reasoning is not undefined else reasoning_effort != "none" %}{{ reasoning }}"""
)
COHERE_EFFORT = """{{- reasoning_effort | lower != "none" }}"""
SEED = """{% if thinking_budget is defined %}{{ thinking_budget }}{% else %}free{% endif %}"""
SOLAR = """{{- reasoning_effort in ["low", "minimal"] }}"""
HY3 = """{%- if reasoning_effort not in ["high", "low", "no_think"] %}{{ raise_exception("effort") }}{% endif %}
{{- reasoning_effort }}"""
MUSE = """{{- reasoning_strength if reasoning_strength is defined else "default" }}"""
NAMED = """{{- reasoning_effort is defined }}"""


def render(template: str, effort: str) -> str:
    model_format = TemplateFormat(DIALECTS["plain"], ByteVocabulary((), ()), ChatTemplate(template))
    return model_format.render_prompt(PromptInput(effort=effort), now=parser_helpers.NOW).text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (KIMI_K3, {"low": "True low", "medium": "True high", "high": "True high", "max": "True max"}),
        (KIMI_K3, {"xhigh": "True high", "minimal": "True low"}),
        (MINIMAX_M3, {"none": "off", "low": "enabled", "high": "enabled"}),
        (COHERE, {"none": "False", "high": "True"}),
        (COHERE_EFFORT, {"none": "False", "low": "True"}),
        (SEED, {"none": "0", "high": "free"}),
        (SOLAR, {"none": "True", "low": "True", "high": "False"}),
        (HY3, {"none": "no_think", "medium": "high", "low": "low"}),
        (MUSE, {"high": "high", "low": "low", "none": "default"}),
        (NAMED, {"none": "False", "low": "True"}),
    ],
)
def test_effort_reaches_the_variable_that_the_template_reads(template: str, expected: dict[str, str]) -> None:
    assert {effort: render(template, effort) for effort in expected} == expected
