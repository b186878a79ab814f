"""The project's source, read as syntax trees: what the tests of layers and sizes look at."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "engine", "events", "harmony", "state")


def modules() -> list[Path]:
    """Every module of the five packages, relative to the root."""
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def modules_of_tests() -> list[Path]:
    """Every module of the tests, relative to the root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


def tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), str(module))


def dotted(module: Path) -> str:
    """The import name of a module: `app/requests/turn_spec.py` is `app.requests.turn_spec`."""
    parts = module.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(node: ast.AST) -> list[tuple[int, int, str]]:
    """(line, level, name) of every import below `node`; `from a import b` counts as `a` and as `a.b`."""
    found: list[tuple[int, int, str]] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            found += [(child.lineno, 0, alias.name) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            found.append((child.lineno, child.level, base))
            found += [(child.lineno, child.level, f"{base}.{alias.name}") for alias in child.names]
    return found
