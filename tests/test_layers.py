"""Import rules of the packages, and what the pure packages must not use. A package without rules fails."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.syntax import PACKAGES, ROOT, find_imports, list_source_modules, list_test_modules, parse_module

INTERNAL_IMPORTS = {
    "events": ("events",),
    "state": ("events", "state"),
    "harmony": ("events", "harmony", "state.segments"),
    "engine": ("engine",),
    "app": ("app", "engine", "events", "harmony", "kit", "state"),
    "kit": ("kit",),
}
"""Modules of this project that each package may import."""

EXTERNAL_IMPORTS = {
    "events": {"msgspec"},
    "state": {"msgspec"},
    "harmony": {"msgspec", "jinja2", "openai_harmony", "tokenizers"},
    "engine": {
        "msgspec",
        "torch",
        "transformers",
        "tokenizers",
        "safetensors",
        "huggingface_hub",
        "numpy",
        "gguf",
        "jinja2",
        "llguidance",
        "httptools",
    },
    "kit": {"msgspec", "httpx", "h11", "click", "rich", "websockets", "pytest", "syrupy", "jsonschema", "referencing"},
    "app": {
        "msgspec",
        "litestar",
        "uvicorn",
        "uvloop",
        "websockets",
        "zstandard",
        "h11",
        "click",
        "cryptography",
        "google",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "rich",
        "structlog",
        "llguidance",
        "prometheus_client",
        "psycopg",
        "tokenizers",
        "huggingface_hub",
    },
}
"""Third-party packages that each package may import besides the standard library."""

PURE_PACKAGES = ("events", "state", "harmony")
IMPURE_MODULES = set(
    """asyncio concurrent litestar logging multiprocessing os psycopg random secrets select selectors signal socket
    sqlite3 ssl subprocess tempfile threading time torch uuid uvicorn""".split()
)
"""Clocks, randomness, threads and I/O. The pure packages take what they need as arguments."""

IMPURE_IMPORT_EXCEPTIONS = {
    (
        "harmony/gptoss/format.py",
        "os",
    ): "the library reads an environment variable that, if stale, hides the library's own vocabulary",
}
"""(module, import) pairs that are allowed, each with its reason."""

WITHOUT_TORCH = (
    "antiphon.app.cli",
    "antiphon.app.launch",
    "antiphon.engine.checkpoint.files",
    "antiphon.engine.checkpoint.hub",
    "antiphon.engine.embeddings.core",
    "antiphon.engine.embeddings.repository",
    "antiphon.engine.embeddings.worker",
    "antiphon.engine.heap",
    "antiphon.engine.options",
    "antiphon.engine.process.client",
    "antiphon.engine.remote.engine",
    "antiphon.engine.remote.model_files",
    "antiphon.engine.scheduler.prefix_cache",
    "antiphon.engine.scheduler.scheduler",
    "antiphon.engine.scripted.engine",
)
"""Modules that work without torch: the front end, the parent of the engine process, and the pure scheduling rules."""

IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "breakpoint"}


def test_every_package_has_import_rules() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - {"tests"}
    assert folders == set(PACKAGES), "add a new package here, in tests/syntax.py and in pyproject.toml"
    assert set(INTERNAL_IMPORTS) == set(EXTERNAL_IMPORTS) == set(PACKAGES)


@pytest.mark.parametrize("module", list_source_modules(), ids=str)
def test_imports_respect_the_layers(module: Path) -> None:
    package = module.parts[0]
    for line, level, target in find_imports(parse_module(module)):
        location = f"{module}:{line}"
        assert level == 0, f"{location}: relative import; packages are imported by name"
        top, _, submodule = target.partition(".")
        if top == "antiphon":
            assert any(_is_allowed(submodule, allowed) for allowed in INTERNAL_IMPORTS[package]), (
                f"{location}: {package} imports {target}"
            )
        elif top not in sys.stdlib_module_names:
            assert top in EXTERNAL_IMPORTS[package], f"{location}: {package} imports {top}"


@pytest.mark.parametrize("module", [*list_source_modules(), *list_test_modules()], ids=str)
def test_no_package_is_imported_by_its_bare_name(module: Path) -> None:
    """Importing both `app` and `antiphon.app` would create two copies of every class."""
    bare = [(line, name) for line, _, name in find_imports(parse_module(module)) if name.split(".")[0] in PACKAGES]
    assert not bare, f"{module}: import antiphon.{bare[0][1]} instead (line {bare[0][0]})"


@pytest.mark.parametrize(
    "module", [module for module in list_source_modules() if module.parts[0] in PURE_PACKAGES], ids=str
)
def test_pure_packages_have_no_side_effects(module: Path) -> None:
    source = parse_module(module)
    impure = {target.split(".")[0] for _, _, target in find_imports(source)} & IMPURE_MODULES
    exceptions = {name for path, name in IMPURE_IMPORT_EXCEPTIONS if path == str(module)}
    assert exceptions <= impure, f"{module}: no longer needs its exception for {sorted(exceptions - impure)}"
    impure -= exceptions
    assert not impure, f"{module}: imports {sorted(impure)}; take it as an argument"
    async_lines = [node.lineno for node in ast.walk(source) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not async_lines, f"{module}: async code at lines {async_lines}"
    calls = {
        node.func.id for node in ast.walk(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & IMPURE_CALLS, f"{module}: calls {sorted(calls & IMPURE_CALLS)}"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_module_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def _is_allowed(target: str, allowed: str) -> bool:
    """Tells whether `target` is `allowed`, a submodule of it, or a package that contains it."""
    return target == allowed or target.startswith(f"{allowed}.") or allowed.startswith(f"{target}.")
