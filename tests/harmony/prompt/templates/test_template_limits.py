"""Hostile chat templates: each ends with an error soon and in little memory, and ordinary templates are unaffected."""

import resource
import subprocess
import sys
import time

import pytest

from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderError
from tests.harmony import parser_helpers
from tests.syntax import ROOT

BIG = "{% set big = 'x' * 9000000 %}"
DOUBLE = "{% set ns = namespace(x=[1]) %}{% for _ in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
TUPLE = "{% set ns = namespace(x=(1,)) %}{% for _ in range(40) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
HOSTILE = {
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "power of a large base": "{% set x = 10 ** 60 %}{{ x ** 60 }}",
    "squaring": "{% set ns = namespace(x=7) %}{% for _ in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "repetition": "{{ 'x' * 10 ** 10 }}",
    "repetition of a list": "{{ [1] * 10 ** 9 }}",
    "doubling": "{% set ns = namespace(x='x') %}{% for _ in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "nested lists written out": DOUBLE + "{{ ns.x }}",
    "nested lists as a string": DOUBLE + "{{ ns.x | string | length }}",
    "nested lists as JSON": DOUBLE + "{{ ns.x | tojson }}",
    "nested lists concatenated": DOUBLE + "{{ 'a' ~ ns.x }}",
    "nested lists compared": DOUBLE.replace("ns.x, ns.x", "ns.x, ns.x")
    + DOUBLE.replace("ns", "ms")
    + "{{ ns.x == ms.x }}",
    "nested lists ordered": DOUBLE + DOUBLE.replace("ns", "ms") + "{{ ns.x < ms.x }}",
    "nested lists searched": DOUBLE + DOUBLE.replace("ns", "ms") + "{{ ns.x in [ms.x] }}",
    "nested lists in a test": DOUBLE + DOUBLE.replace("ns", "ms") + "{{ ns.x is eq(ms.x) }}",
    "nested lists sorted": DOUBLE + DOUBLE.replace("ns", "ms") + "{{ [ns.x, ms.x] | sort | length }}",
    "nested lists formatted": DOUBLE + "{{ '%s' % (ns.x,) }}",
    "nested lists in format": DOUBLE + "{{ '{}'.format(ns.x) }}",
    "nested lists joined": DOUBLE + "{{ [ns.x] | join }}",
    "nested tuples hashed": TUPLE + "{{ {ns.x: 1} }}",
    "format width": "{{ '%999999999d' % 1 }}",
    "format star": "{{ '%*d' % (999999999, 1) }}",
    "many format widths": "{{ ('%9999d' * 9000) % ((1,) * 9000) }}",
    "many large values": BIG + "{{ ('%s' * 1000) % ((big,) * 1000) }}",
    "format method width": "{{ '{:999999999}'.format(1) }}",
    "format method nested width": "{{ '{:{}}'.format(1, 999999999) }}",
    "many format method widths": "{{ ('{0:{1}}' * 9000).format(1, 99999) }}",
    "format method many values": BIG + "{{ ('{0}' * 1000).format(big) }}",
    "center": "{{ 'x'.center(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "translate": BIG + "{{ ('a' * 100000).translate({97: big}) | length }}",
    "join": BIG + "{{ ([big] * 100000) | join | length }}",
    "join method": BIG + "{{ ''.join([big] * 100000) | length }}",
    "join with a large separator": BIG + "{{ range(99999) | list | join(big) | length }}",
    "replace": BIG + "{{ big.replace('x', big) | length }}",
    "replace filter": BIG + "{{ big | replace('x', big) | length }}",
    "replace nothing": BIG + "{{ big.replace('', big) | length }}",
    "indent": "{{ ('a\\n' * 100000) | indent(100000) | length }}",
    "indent by text": BIG + "{{ ('a\\n' * 100000) | indent(big) | length }}",
    "batch": "{{ [1] | batch(999999999, 0) | list | length }}",
    "slice": "{{ [1] | slice(999999999) | list | length }}",
    "split": BIG + "{{ big.split('x') | length }}",
    "list of letters": BIG + "{{ big | list | length }}",
    "sorted letters": BIG + "{{ big | sort | length }}",
    "searching": BIG + "{% for _ in range(99999) %}{{ 'y' in big }}{% endfor %}",
    "counting": BIG + "{% for _ in range(99999) %}{{ big.count('y') }}{% endfor %}",
    "changing case": BIG + "{% for _ in range(99999) %}{{ big | upper | length }}{% endfor %}",
    "titles": "{{ ('a ' * 7000000) | title | length }}",
    "words": "{{ ('a ' * 7000000) | wordcount }}",
    "tags": "{{ ('<a>' * 5000000) | striptags | length }}",
    "pretty lists": "{{ ([1] * 900000) | pprint | length }}",
    "sorted lists": "{{ ([1, 2] * 400000) | sort | length }}",
    "grouped lists": "{{ ([{'a': 1}] * 300000) | groupby('a') | list | length }}",
    "random text": "{{ lipsum(n=1000000000) }}",
    "date": "{{ strftime_now('%d' * 7000000) | length }}",
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_ends_with_an_error(name: str) -> None:
    started = time.thread_time()
    with pytest.raises(RenderError):
        ChatTemplate(HOSTILE[name]).render({}, now=parser_helpers.NOW)
    assert time.thread_time() - started < 30, "the limit holds back no time"


def test_hostile_templates_use_little_memory() -> None:
    """Renders all templates in one process, whose peak memory is measured."""
    program = (
        "import resource, sys\n"
        "from antiphon.harmony.prompt.templates.jinja import ChatTemplate\n"
        "from tests.harmony.prompt.templates.test_template_limits import HOSTILE\n"
        "from tests.harmony import parser_helpers\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for template in HOSTILE.values():\n"
        "    try: ChatTemplate(template).render({}, now=parser_helpers.NOW)\n"
        "    except Exception: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    kib = int(result.stdout) if sys.platform == "linux" else int(result.stdout) // 1024
    assert kib < 300 * 1024
    assert resource  # the same module measures in the child


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '%s is %d, %5.2f' % ('a', 3, 2.5) }}", "a is 3,  2.50"),
        ("{{ '{} {:>4} {name}'.format('a', 7, name='b') }}", "a    7 b"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '+') }}", "a+ba+b"),
        ("{{ ['a', 'b'] | join(', ') }}{{ ','.join(['a', 'b']) }}", "a, ba,b"),
        ("{{ 'a\\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'x' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1, 2] + [3] }}", "xxx10243[1, 2, 3]"),
        (
            "{{ [3, 1, 2] | sort }}{{ [1, 1] | unique | list }}{{ {'a': [1, {'b': 2}]} | tojson }}",
            '[1, 2, 3][1]{"a": [1, {"b": 2}]}',
        ),
        ("{{ 'a b c'.split(' ') }}{{ 'ab' | list }}{{ 'ab' | upper }}", "['a', 'b', 'c']['a', 'b']AB"),
        ("{{ [1, [2]] == [1, [2]] }}{{ 2 in [1, 2] }}{{ 'a' < 'b' }}{{ 3 is divisibleby 3 }}", "TrueTrueTrueTrue"),
        ("{{ messages[0].content | trim }}{{ messages | map(attribute='role') | join }}", "Hiuser"),
        ("{% if x is defined and x is not none %}a{% else %}b{% endif %}{{ y is mapping }}{{ y.a.b }}", "bTrue1"),
    ],
)
def test_ordinary_template_renders_as_before(template: str, expected: str) -> None:
    context = {"messages": [{"role": "user", "content": " Hi "}], "y": {"a": {"b": 1}}}
    assert ChatTemplate(template).render(context, now=parser_helpers.NOW) == expected


def test_long_conversation_stays_within_the_budget() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ m.calls | tojson }}\n{% endfor %}"
    message = {"role": "user", "content": "word " * 400, "calls": [{"a": list(range(50))}]}
    text = ChatTemplate(template).render({"messages": [message] * 4000}, now=parser_helpers.NOW)
    assert len(text) > 4000 * 2000
