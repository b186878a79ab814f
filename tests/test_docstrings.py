"""Docstrings name what exists: a name in backticks is that of a parameter, or of something else that the code has.

A docstring that names a parameter as it was called before a change sends its reader astray. Texts, values and words of
other languages stand in double quotes.
"""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.syntax import ROOT, list_source_modules, parse_module

NAME_IN_BACKTICKS = re.compile(r"(?<!`)`([a-z_][a-z0-9_]*)`(?!`)")
SPHINX_MARKUP = re.compile(r"``[^`]|:(?:attr|class|const|data|exc|func|meth|mod|obj):`")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FOREIGN_NAMES = {"ignore_mismatched_sizes", "iter_lines", "ps", "splitlines"}
"""Names of other libraries and programs that no code here uses."""


def test_names_in_docstrings_exist() -> None:
    strays = [stray for module in list_source_modules() for stray in _find_strays(module, parse_module(module))]
    assert not strays, "use the parameter's present name; put values and words in double quotes"


def test_docstrings_are_markdown() -> None:
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    found = [
        f"{module}: {node.name if not isinstance(node, ast.Module) else 'module'}"
        for module in list_source_modules()
        if SPHINX_MARKUP.search((ROOT / module).read_text(encoding="utf-8"))
        for node in ast.walk(parse_module(module))
        if isinstance(node, documented) and SPHINX_MARKUP.search(ast.get_docstring(node) or "")
    ]
    assert not found, "write `name` for a name, without a role"


def test_docstrings_name_their_subject() -> None:
    found = [
        f"{module}: {node.value.value.splitlines()[0]}"
        for module in list_source_modules()
        for node in ast.walk(parse_module(module))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if node.value.value.startswith("What ")
    ]
    assert not found, "name the thing: its kind, its state, its parts"


def test_dead_parameter_is_found() -> None:
    source = (
        'def f(limit):\n    """Returns at most `most` rows, as `len` counts them, up to `limit`."""\n    return limit'
    )
    assert [stray.rpartition(" ")[2] for stray in _find_strays(Path("m.py"), ast.parse(source))] == ["`most`"]


def test_local_of_another_function_does_not_hide_it() -> None:
    source = 'def f(a):\n    """Adds `place`."""\n    return a\ndef g():\n    place = 1\n    return place'
    assert _find_strays(Path("m.py"), ast.parse(source))


def _find_strays(module: Path, tree: ast.Module) -> list[str]:
    unknown = [
        (function, name)
        for function, parameters in _list_functions(tree, frozenset())
        for name in NAME_IN_BACKTICKS.findall(ast.get_docstring(function) or "")
        if not (name in parameters or name in FOREIGN_NAMES or name in _project_names())
    ]
    in_module = _names_of_module(tree) if unknown else set()
    return [
        f"{module}:{function.lineno} {function.name} `{name}`"
        for function, name in unknown
        if name not in in_module | _identifiers(function)
    ]


def _list_functions(
    node: ast.AST, outer: frozenset[str]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, frozenset[str]]]:
    """Yields each function below `node` with its parameters and those of the functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            parameters = outer | {argument.arg for argument in ast.walk(child.args) if isinstance(argument, ast.arg)}
            yield child, parameters
            yield from _list_functions(child, parameters)
        else:
            yield from _list_functions(child, outer)


def _names_of_module(tree: ast.Module) -> set[str]:
    """Returns imports, attributes, fields, arguments of calls and strings of a module; no variables of functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names |= {*node.name.split("."), node.asname or node.name}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.ClassDef):
            names |= set(_list_fields(node))
    return names


def _list_fields(node: ast.ClassDef) -> list[str]:
    targets = [statement.target for statement in node.body if isinstance(statement, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _identifiers(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


@cache
def _project_names() -> frozenset[str]:
    """Returns names of modules, functions and classes, the language's own names, and strings that look like fields."""
    names = {*dir(builtins), *keyword.kwlist}
    for module in list_source_modules():
        names.add(module.stem)
        for node in ast.walk(parse_module(module)):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "_" in node.value:
                names.add(node.value)
    return frozenset(names)
