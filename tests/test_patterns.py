"""Every regular expression of the packages takes linear time, whatever text it reads."""

import ast
import contextlib
import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.app.requests.responses.input_items import ITEM_TYPES
from antiphon.app.requests.tools import SERVED_TYPES
from antiphon.harmony.gptoss.header import HeaderParser
from antiphon.harmony.parsing.tape import literals
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet
from antiphon.harmony.tokens.special_tokens import SpecialTokens
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.kit.cassette import secret_shapes
from tests.endpoint_bodies import BODIES
from tests.pumping import METHODS, find_slow_input
from tests.syntax import PACKAGES, ROOT, list_source_modules, module_name, parse_module

FUNCTIONS = {"compile", "match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn"}
_TEXTS = literals("<tool_call>", "<tool_calls>", "</tool_call>", "<|end|>", "aab", "ab", controls=True)


def _list_schema_patterns() -> set[str]:
    """Returns the patterns of strings in request bodies and in the items and tools inside them."""
    _, schemas = msgspec.json.schema_components([*BODIES.values(), *ITEM_TYPES.values(), *SERVED_TYPES.values()])
    return {json.loads(f'"{found}"') for found in re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(schemas))}


_HEADERS = HeaderParser(MarkerAlphabet(ByteVocabulary((), ()), ()))
_TOKENS = SpecialTokens(["<think>", "<tool_call>", "</think>", "aab"])
BUILT_PATTERNS: dict[str, tuple[re.Pattern[str] | re.Pattern[bytes], ...]] = {
    "app.requests.fields.checks:_build_string.check": tuple(map(re.compile, _list_schema_patterns())),
    "engine.remote.faults:line": (re.compile(re.escape("sk-a secret"), re.IGNORECASE),),
    "harmony.gptoss.header:_ahead": (_HEADERS._ahead,),
    "harmony.gptoss.header:_heads": tuple(_HEADERS._heads.values()),
    "harmony.image_tokens:_run": (re.compile("(?:<image>)+"), re.compile("(?:aa)+")),
    "harmony.prompt.image_messages:_marks": (re.compile("#(\\d+)#"),),
    "harmony.parsing.tape:complete_pattern": (_TEXTS.complete_pattern,),
    "harmony.parsing.tape:first_char_pattern": (_TEXTS.first_char_pattern,),
    "harmony.parsing.tape:partial_pattern": (_TEXTS.partial_pattern,),
    "harmony.tokens.detokenizer:split_at_tokens": (re.compile("(aab|ab|<think>)"),),
    "harmony.tokens.encode_cache:cut": (re.compile("(?=aab|ab|<think>)"),),
    "harmony.tokens.special_tokens:_first": (_TOKENS._first,),
    "harmony.tokens.vocabulary:_split": (ByteVocabulary(["<think>", "aab", "ab"], ["ab"])._split,),
    "kit.cassette.secret_shapes:_KEYS": tuple(pattern for _, pattern in secret_shapes._KEYS),
    "kit.proxy.websocket_check:bits": (re.compile(r"server_max_window_bits=\"?(\d+)"),),
}
"""Expressions that are built while the program runs, by their place, with examples of them."""
FOREIGN_PATTERNS = {
    "harmony.patterns:_has_one_length": "one part of a repository's pattern, matched with one character",
    "harmony.detection.response_template:compiled": "a repository's pattern, used if `find_complex_part` finds nothing",
    "kit.conformance.expectations:_check_calls": "a pattern of a suite, checked by `test_patterns_of_suites_take_linear_time`",
    "kit.conformance.expectations:_check_text": "a pattern of a suite, checked by `test_patterns_of_suites_take_linear_time`",
}
"""Expressions that come from files, by their place, with the reason why their time is linear."""


class PatternUse(msgspec.Struct, frozen=True):
    """A call of a function of `re`. `name`: the constant that holds the compiled expression, if there is one."""

    module: Path
    function: str
    method: str
    argument: ast.expr
    flags: ast.expr | None
    name: str | None

    @property
    def place(self) -> str:
        """Place of the call: the module and the function or the constant."""
        return f"{module_name(self.module)}:{self.name or self.function}"


@cache
def list_uses() -> list[PatternUse]:
    """Returns every call of a function of `re` in the packages."""
    return [use for module in list_source_modules() for use in _find_uses(module)]


def _find_uses(module: Path) -> Iterator[PatternUse]:
    tree = parse_module(module)
    for node, function, name in _walk(tree, "", None):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in FUNCTIONS:
            position = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2}
            index = position.get(node.func.attr, 99)
            flags = next((word.value for word in node.keywords if word.arg == "flags"), None)
            flags = node.args[index] if len(node.args) > index else flags
            yield PatternUse(module, function, node.func.attr, node.args[0], flags, name)


def _walk(node: ast.AST, function: str, name: str | None) -> Iterator[tuple[ast.AST, str, str | None]]:
    """Yields all nodes below a node, with the function and the assignment that they belong to."""
    yield node, function, name
    for child in ast.iter_child_nodes(node):
        inner, target = function, name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".strip(".")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            first = child.targets[0] if isinstance(child, ast.Assign) else child.target
            target = (
                first.id if isinstance(first, ast.Name) else first.attr if isinstance(first, ast.Attribute) else None
            )
        yield from _walk(child, inner, target)


@cache
def _methods_by_name() -> dict[str, set[str]]:
    """Returns the methods that are called on each name or attribute, of whatever object."""
    methods: dict[str, set[str]] = {}
    for module in list_source_modules():
        for node in ast.walk(parse_module(module)):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS - {"compile"}:
                value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
                name = (
                    value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
                )
                methods.setdefault(name, set()).add(node.attr)
    return methods


def _methods(use: PatternUse) -> set[str]:
    used = {use.method} if use.method != "compile" else _methods_by_name().get(use.name or "", set())
    return {name if name in METHODS else "findall" for name in used} or set(METHODS)


def _evaluate(use: PatternUse, expression: ast.expr | None) -> Any:
    """Returns the value of an expression, or None if it depends on local variables."""
    if expression is None:
        return 0
    code = compile(ast.Expression(expression), use.place, "eval")
    for load_names in (
        lambda: {"re": re},
        lambda: vars(importlib.import_module(f"antiphon.{module_name(use.module)}")),
    ):
        with contextlib.suppress(NameError, AttributeError):
            return eval(code, dict(load_names()))  # an expression of this repository
    return None


@pytest.mark.parametrize("package", PACKAGES)
def test_patterns_take_linear_time(package: str) -> None:
    faults = {use.place: fault for use in list_uses() if use.module.parts[0] == package and (fault := _find_fault(use))}
    assert faults == {}


def _find_fault(use: PatternUse) -> str:
    """Returns an input on which an expression is slow, or the reason why it cannot be checked; else ""."""
    if use.place in FOREIGN_PATTERNS:
        return ""
    methods = sorted(_methods(use))
    if use.place in BUILT_PATTERNS:
        found = (find_slow_input(each.pattern, each.flags, methods) for each in BUILT_PATTERNS[use.place])
        return next(filter(None, found), "")
    pattern = _evaluate(use, use.argument)
    if pattern is None:
        return "it depends on local variables: add an example of it to BUILT_PATTERNS"
    return find_slow_input(pattern, _evaluate(use, use.flags), methods)


def test_places_of_built_patterns_exist() -> None:
    places = {use.place for use in list_uses()}
    assert set(BUILT_PATTERNS) | set(FOREIGN_PATTERNS) <= places


def test_patterns_of_suites_take_linear_time() -> None:
    """The text is an engine's."""
    suites = [text for file in (ROOT / "kit" / "suites").rglob("*.toml") for text in [file.read_text(encoding="utf-8")]]
    patterns = {
        pattern for suite in suites for pattern in re.findall(r"^(?:text|input)_pattern = '(.*)'$", suite, re.MULTILINE)
    }
    assert patterns
    for pattern in patterns:
        assert find_slow_input(pattern, re.DOTALL, ["fullmatch", "search"]) == "", pattern


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"^[ \t]*[?!]?[A-Za-z_][\w.]*[^\n\"/:]*:", "findall"),  # the rules of a grammar, once
        (r"([\w-]+)\s*=\s*", "findall"),
        (r"(\d+):\[", "findall"),
        (r"\s*(?:assistant)?\s*to", "fullmatch"),
        (r"(a+)+b", "match"),
        (r"(([a-z._0-9]+)+)+!", "fullmatch"),
        (r"(x|xx)*y", "match"),
        (r".*.*=.*", "match"),
        (r"<a>.*</a>", "findall"),
        (r"\w+@\w+", "search"),
        (r"(?:ab?)*(?:ba)*c", "fullmatch"),
        (r"^(\d+)*[a-z]$", "match"),
        (rb"[a-z]*[a-c]*=", "search"),
    ],
)
def test_slow_patterns_are_found(pattern: Any, method: str) -> None:
    assert find_slow_input(pattern, 0, [method]) != ""
