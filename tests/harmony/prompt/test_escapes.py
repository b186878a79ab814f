"""Escapes from the template sandbox that are known for jinja2: none reaches an object of the server.

A template that escapes writes the marker, which only code outside the sandbox can build: the name of a class in the
list of all classes, a module's file, or the result of a command.
"""

import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderError

NOW = datetime(2026, 2, 3, tzinfo=UTC)
ROOTS = (
    "''", "[]", "{}", "()", "1", "messages", "messages[0]", "messages[0].content", "self", "namespace", "namespace()", "cycler",
    "cycler('a')", "joiner", "joiner()", "range", "range(3)", "dict(a=1)", "raise_exception", "strftime_now",
    "macro", "loop_like", "caller", "text.upper", "text.format", "(text|list)", "(text|map('upper'))", "none", "undefined_name",
    "undefined_name.more", "messages|groupby('role')|list|first", "(1).bit_length", "messages[0].items()", "big.to_bytes",
)  # fmt: skip
"""Expressions of every kind of object that a template can reach."""
ATTRIBUTES = (
    "__class__", "__class__.__mro__", "__class__.__base__", "__class__.__subclasses__", "__globals__", "__init__", "__code__",
    "__self__", "__func__", "__builtins__", "__import__", "__reduce__", "__reduce_ex__", "__dict__", "__module__", "__getattribute__",
    "__closure__", "__defaults__", "__kwdefaults__", "__wrapped__", "gi_frame", "gi_code", "cr_frame", "ag_frame", "f_globals",
    "func_globals", "im_func", "mro", "environment", "_TemplateReference__context", "_context", "_func", "_fail_with_undefined_error",
    "_undefined_exception", "__slots__", "__weakref__", "__call__.__globals__", "__init__.__globals__",
)  # fmt: skip
PRELUDE = (
    "{% macro macro(x) %}{{ x }}{{ caller }}{% endmacro %}{% set text = 'abc' %}{% set big = 5 %}"
    "{% set loop_like = [1] %}"
)
CONTEXT: dict[str, Any] = {"messages": [{"role": "user", "content": "secret-of-nothing"}]}


def render(source: str) -> str | None:
    """Returns the prompt, or None if the template is refused."""
    try:
        return ChatTemplate(source).render(CONTEXT, now=NOW)
    except RenderError:
        return None


MARKS = (
    "<class 'str", "<class 'int", "<class 'type", "<class 'object", "<class 'list", "<module", "<code", "<frame", "<slot", "<method-",
    "/lib/python", "'__name__'", "uid=", "root:",
)  # fmt: skip


def assert_harmless(text: str | None, source: str) -> None:
    for mark in MARKS:
        assert mark not in (text or ""), f"{source}: {text!r}"


@pytest.mark.parametrize("root", ROOTS)
def test_no_attribute_leads_out(root: str) -> None:
    names = {name for attribute in ATTRIBUTES for name in attribute.split(".")}
    accesses = [
        access.format(root=root, name=name)
        for name in sorted(names)
        for access in ("({root}).{name}", "({root})['{name}']", "({root})|attr('{name}')", "({root})['{name}'|string]")
    ]
    found = render(PRELUDE + "".join(f"{{% if {access} is defined %}}{access}{{% endif %}}" for access in accesses))
    # None: the value is undefined itself. For a method that formats, the sandbox answers with its own safe wrapper.
    assert found in (None, "") or set(found.split("(text.format)")) <= {
        "",
        ".__wrapped__",
        "['__wrapped__']",
        "['__wrapped__'|string]",
        "|attr('__wrapped__')",
    }


@pytest.mark.parametrize("root", ROOTS)
def test_no_format_string_leads_out(root: str) -> None:
    for attribute in ("__class__.__mro__", "__init__.__globals__", "__self__", "gi_frame"):
        for access in (
            f"'{{0.{attribute}}}'.format({root})",
            f"'{{x.{attribute}}}'.format_map(dict(x={root}))",
            f"[{root}] | map(attribute='{attribute}') | list",
        ):
            assert_harmless(render(f"{PRELUDE}{{{{ {access} }}}}"), access)


ESCAPES = {
    "built name": "{{ ''['__cla' ~ 'ss__']['__mro__'] }}",
    "encoded name": r"{{ ''['\x5f\x5fclass\x5f\x5f'] }}",
    "reversed name": "{{ ''|attr('__ssalc__'[::-1]) }}",
    "joined name": "{{ ''|attr(['__', 'class', '__']|join) }}",
    "name from the message": "{{ messages|attr('__class__') }}",
    "format as an object": "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "format in a map": "{{ ['{0.__class__}']|map('format', '')|list }}",
    "format through a macro": "{% macro m(f) %}{{ f('') }}{% endmacro %}{{ m('{0.__class__.__init__}'.format) }}",
    "format by attr": "{{ ('{0.__class__}'|attr('format'))('') }}",
    "format of a method of a list": "{{ ['{0.__class__}'.format]|first|string }}",
    "format_map of a dict": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "nested format": "{{ '{0.{1}}'.format('', '__class__') }}",
    "format index": "{{ '{0[__class__]}'.format(messages) }}",
    "safe format": "{{ ('{0.__class__.__mro__}'|safe).format('') }}",
    "escaped format": "{{ ('{0.__class__}'|e).format(1) }}",
    "percent": "{{ '%(x)s' % {'x': ''.__class__} }}",
    "sum of attributes": "{{ ['']|sum(attribute='__class__') }}",
    "sort by attribute": "{{ ['']|sort(attribute='__class__.__name__') }}",
    "groupby attribute": "{{ ['']|groupby('__class__')|list }}",
    "selectattr": "{{ ['']|selectattr('__class__')|list }}",
    "min by attribute": "{{ ['', 'a']|min(attribute='__class__') }}",
    "unique by attribute": "{{ ['', 'a']|unique(attribute='__class__')|list }}",
    "globals of a global": "{{ raise_exception.__globals__ }}",
    "globals of lipsum": "{{ lipsum.__globals__['os'] }}",
    "globals of cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "globals of namespace": "{{ namespace.__init__.__globals__ }}",
    "set on namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "namespace of a dict": "{% set ns = namespace(**{'__class__': 1}) %}{{ ns.__class__.__mro__ }}",
    "self": "{{ self._TemplateReference__context.environment }}",
    "self of a block": "{% block a %}{{ self.__init__.__globals__ }}{% endblock %}",
    "loop": "{% for x in [1] %}{{ loop.__class__ }}{{ loop._undefined }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "macro": "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func }}",
    "caller": "{% macro m() %}{{ caller.__globals__ }}{{ caller._func }}{% endmacro %}{% call m() %}{% endcall %}",
    "varargs": "{% macro m() %}{{ varargs.__class__ }}{{ kwargs.__class__ }}{% endmacro %}{{ m(1, a=2) }}",
    "generator": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "generator by attr": "{{ (messages|map('upper'))|attr('gi_frame') }}",
    "generator of select": "{{ (messages|select)|attr('gi_code') }}",
    "undefined": "{{ missing.__class__ }}{{ missing._undefined_exception }}",
    "undefined's method": "{{ missing|attr('_fail_with_undefined_error') }}",
    "strftime": "{{ strftime_now.__self__ }}",
    "strftime's class": "{{ strftime_now.__self__.__class__.__subclasses__() }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from import": "{% from 'os' import popen %}{{ popen }}",
    "extends": "{% extends '/etc/passwd' %}",
    "do": "{% do messages.append(1) %}{{ messages|length }}",
    "change of a list": "{{ messages.append(1) }}",
    "change of a dict": "{{ messages[0].update({'role': 'system'}) }}",
    "change by attr": "{{ (messages|attr('append'))(1) }}",
    "change by map": "{{ [messages]|map(attribute='clear')|list }}",
    "dict's subclass": "{{ dict.__subclasses__() }}",
    "dict.fromkeys": "{{ dict.fromkeys('ab').__class__ }}",
    "mro": "{{ ''.__class__.mro()[1].__subclasses__() }}",
    "int's parts": "{{ (1).real.__class__ }}",
    "bytes": "{{ 'a'.encode().__class__ }}",
    "code of a test": "{{ messages is callable }}{{ range is callable }}{{ range.__class__ }}",
    "filter map with attr": "{{ ['']|map('attr', '__class__')|list }}",
    "tojson default": "{{ messages|tojson(default=messages) }}",
    "tojson of a method": "{{ raise_exception|tojson }}",
    "generation tag": "{% generation %}{{ ''.__class__ }}{% endgeneration %}",
    "debug": "{% debug %}",
    "translate tag": "{% trans %}{{ ''.__class__ }}{% endtrans %}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_known_escape_fails(name: str) -> None:
    text = render(ESCAPES[name])
    assert_harmless(text, ESCAPES[name])
    assert CONTEXT == {"messages": [{"role": "user", "content": "secret-of-nothing"}]}, "a template changes nothing"


def test_names_of_the_sandbox_are_known() -> None:
    assert set(vars(sys.modules["antiphon.harmony.prompt.templates.jinja"])["_sandbox"].globals) == {
        "range", "dict", "cycler", "joiner", "namespace", "raise_exception",
    }  # fmt: skip
