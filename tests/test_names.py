"""Names: unique classes, few one-word names, small folders. `python -m tests.test_names` prints the figures."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from antiphon.state.table import Verb
from tests.syntax import PACKAGES, ROOT, list_source_modules, module_name, parse_module

MAX_ONE_WORD_FUNCTIONS = 0.35
MAX_ONE_WORD_CLASSES = 0.25
"""Limits on the share of one-word names, near those of h11, litestar and transformers. One word is rarely unique."""

MAX_MODULES_PER_FOLDER = 16

MACHINE_VERBS = frozenset(get_args(Verb)) | {"feed", "stop"}
"""Functions named after a verb or an input of the state machine. Its table defines them."""

EVENT_PACKAGES = ("events", "state")
"""Packages whose one-word classes are events (`Created`) or segments (`Say`). The glossary defines them."""

SHARED_CLASS_NAMES: dict[str, str] = {}
"""Maps a class name to the reason why two classes have it."""


@dataclass
class NameCount:
    """Names of functions and classes in one package, without the dunder methods."""

    functions: list[str]
    classes: list[str]

    @property
    def one_word_functions(self) -> list[str]:
        return [name for name in self.functions if "_" not in name and name not in MACHINE_VERBS]

    @property
    def one_word_classes(self) -> list[str]:
        return [name for name in self.classes if len(re.findall(r"[A-Z][a-z0-9]*", name)) < 2]


def test_class_names_are_unique() -> None:
    modules: dict[str, list[str]] = {}
    for module in list_source_modules():
        for node in ast.walk(parse_module(module)):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name.lstrip("_"), []).append(module_name(module))
    shared = {name: users for name, users in modules.items() if len(users) > 1}
    assert shared.keys() == SHARED_CLASS_NAMES.keys(), f"rename one of them: {shared}"


def test_share_of_one_word_names_is_limited() -> None:
    for package in PACKAGES:
        names = count_names(package)
        if not names.functions:  # `web`, which has no Python
            continue
        share = len(names.one_word_functions) / len(names.functions)
        assert share <= MAX_ONE_WORD_FUNCTIONS, f"{package}: {share:.0%} {Counter(names.one_word_functions)}"
        if package not in EVENT_PACKAGES:
            share = len(names.one_word_classes) / len(names.classes)
            assert share <= MAX_ONE_WORD_CLASSES, f"{package}: {share:.0%} {sorted(names.one_word_classes)}"


def test_number_of_modules_per_folder_is_limited() -> None:
    large_folders = {folder: size for folder, size in count_modules().items() if size > MAX_MODULES_PER_FOLDER}
    assert not large_folders, f"more than {MAX_MODULES_PER_FOLDER} modules: {large_folders}"


def count_names(package: str) -> NameCount:
    names = NameCount([], [])
    for module in list_source_modules():
        if module.parts[0] != package:
            continue
        for node in ast.walk(parse_module(module)):
            if isinstance(node, ast.ClassDef):
                names.classes.append(node.name.lstrip("_"))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not re.fullmatch("__.*__", node.name):
                names.functions.append(node.name.strip("_"))
    return names


def count_modules() -> dict[str, int]:
    """Returns the number of modules of each folder, `__init__.py` included."""
    folders = {(ROOT / module).parent for module in list_source_modules()}
    return {str(Path(folder).relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in sorted(folders)}


def print_figures() -> None:
    print(f"{'package':9}{'functions':>10}{'one word':>10}{'classes':>9}{'one word':>10}")
    for package in PACKAGES:
        names = count_names(package)
        functions = len(names.one_word_functions) / max(1, len(names.functions))
        classes = len(names.one_word_classes) / max(1, len(names.classes))
        print(f"{package:9}{len(names.functions):10}{functions:10.0%}{len(names.classes):9}{classes:10.0%}")
    largest = sorted(count_modules().items(), key=lambda entry: -entry[1])[:3]
    print("largest folders:", ", ".join(f"{folder} ({size})" for folder, size in largest))


if __name__ == "__main__":
    print_figures()
