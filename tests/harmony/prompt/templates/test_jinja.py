"""Chat templates render as in transformers, within limits on length and loop iterations."""

import pytest

from antiphon.harmony.prompt.templates.jinja import ChatTemplate, RefusedError
from antiphon.harmony.rendered_prompt import RenderError
from tests.harmony import parser_helpers


def render_template(source: str, **context: object) -> str:
    return ChatTemplate(source).render(context, now=parser_helpers.NOW)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{{ {'a': 'é<', 'b': [1]} | tojson }}", '{"a": "é<", "b": [1]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'a': 'é'} | tojson(ensure_ascii=False) }}", '{"a": "é"}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-11-21"),
        ("{% for x in xs %}\n    {{- x }}\n{% endfor %}\n", "a\nb\n"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        (
            "{% for x in xs[::-1] %}{{ loop.index }}{{ loop.previtem }}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
            "1bFalse22baTrue2",
        ),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}{{ m(x='b') }}", "<a><b>"),
        ("{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        (
            "{{ 'a-b'.split('-') | first }}{{ ' x '.strip() }}{{ 'x' ~ 1 }}{{ xs | join(',') }}{{ '%s' % 'y' }}",
            "ax" + "x1a,by",
        ),
        ("{{ undefined_thing }}{{ xs is defined }}", "True"),
    ],
)
def test_common_template_features_render(source: str, text: str) -> None:
    assert render_template(source, xs=["a", "b"]) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 200000000 }}",
        "{{ 200000000 * [1] }}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('a', 'aa') %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for x in xs recursive %}{{ loop(xs) }}{% endfor %}",
        "{% for x in range(9999) %}{{ xs[0] * 9999 }}{% endfor %}",
        "{{ 'a'.center(1000000000) }}",
        "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
        "{{ ('a' * 9999999).join(xs * 9999) }}",
        "{{ '%1000000000d' % 3 }}",
        "{{ 9 ** 99999999 }}",
        "{% set ys = ['a'] %}{% set _ = ys.append(ys) %}{{ ys }}",
        "{% set ys = ['a'] %}{% set _ = ys.append(ys) %}{{ ys | tojson }}",
        "{% set ys = ['a'] %}{% for y in ys %}{{ ys.append(y) }}{% endfor %}",
    ],
)
def test_unbounded_templates_are_stopped(source: str) -> None:
    with pytest.raises(RenderError):
        render_template(source, xs=["a", "b"])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ xs.append(1) }}",
        "{{ [xs][0].pop() }}",
        "{% set ys = [xs] %}{{ ys.pop().append(1) }}",
        "{{ xs.extend(xs) }}",
        "{{ xs.clear() }}",
        "{{ {}.update(a=1) }}",
        "{{ x.y.z }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no') }}",
        "{% for k, v in xs | items %}{% endfor %}",
        "{% include 'x' %}",
    ],
)
def test_template_errors_raise_refused_error(source: str) -> None:
    with pytest.raises(RefusedError, match="refused the conversation"):
        render_template(source, xs=["a", "b"])


def test_template_appends_to_its_lists_and_takes_from_them() -> None:
    source = "{% set ids = [] %}{% set _ = ids.append('a') %}{% set _ = ids.append('b') %}{{ ids.pop(0) }}{{ ids }}"
    assert render_template(source) == "a['b']"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{{ x | nosuchfilter }}"])
def test_syntax_errors_raise_render_error(source: str) -> None:
    with pytest.raises(RenderError, match="does not compile"):
        ChatTemplate(source)


def test_limits_are_parameters() -> None:
    with pytest.raises(RenderError, match="too long"):
        ChatTemplate("{{ xs }}").render({"xs": "abc"}, now=parser_helpers.NOW, max_chars=2)
    with pytest.raises(RenderError, match="exceeds the limit on loop iterations"):
        ChatTemplate("{% for x in xs %}{% endfor %}").render({"xs": "abc"}, now=parser_helpers.NOW, max_steps=2)
