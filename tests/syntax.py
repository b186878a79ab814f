"""Source modules and their syntax trees, for the tests of layers, sizes and names."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "console", "engine", "events", "harmony", "kit", "state", "web")


def list_source_modules() -> list[Path]:
    """Returns all modules of the packages, relative to the root."""
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def list_test_modules() -> list[Path]:
    """Returns all modules of the tests, relative to the root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


def parse_module(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), str(module))


def module_name(module: Path) -> str:
    """Returns the import name of a module, such as `app.requests.turn_spec` for `app/requests/turn_spec.py`."""
    parts = module.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def list_imports(module: Path) -> tuple[tuple[int, int, str], ...]:
    """Returns what `find_imports` finds in a module."""
    return tuple(find_imports(parse_module(module)))


def find_imports(node: ast.AST) -> list[tuple[int, int, str]]:
    """Returns (line, level, name) of every import below `node`. `from a import b` counts as `a` and as `a.b`."""
    imports: list[tuple[int, int, str]] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            imports += [(child.lineno, 0, alias.name) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            imports.append((child.lineno, child.level, base))
            imports += [(child.lineno, child.level, f"{base}.{alias.name}") for alias in child.names]
    return imports


@cache
def list_test_functions(file: str) -> frozenset[str]:
    """Returns the names of the test functions in a test module. Returns an empty set if there is no such module."""
    path = ROOT / file
    if not path.is_file() or not path.name.startswith("test_"):
        return frozenset()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in body if isinstance(node, kinds) and node.name.startswith("test_"))
