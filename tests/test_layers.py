"""Who may import whom, and what the pure packages may not touch. A package that is not placed here fails."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.syntax import PACKAGES, ROOT, imports, modules, modules_of_tests, tree

OURS = {
    "events": ("events",),
    "state": ("events", "state"),
    "harmony": ("events", "harmony", "state.segments"),
    "engine": ("engine",),
    "app": ("app", "engine", "events", "harmony", "state"),
}
"""Of our own, what each package may import."""

THEIRS = {
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
        "jinja2",
        "llguidance",
    },
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
        "rich",
        "structlog",
        "llguidance",
        "prometheus_client",
        "tokenizers",
        "huggingface_hub",
    },
}
"""Of others, what each package may import besides the standard library."""

PURE = ("events", "state", "harmony")
IMPURE = set(
    """asyncio concurrent litestar logging multiprocessing os random secrets select selectors signal socket
    sqlite3 ssl subprocess tempfile threading time torch uuid uvicorn""".split()
)
"""Clocks, chance, threads, sockets and the like: the pure packages take what they need as arguments."""

EXCUSED = {
    (
        "harmony/gptoss/format.py",
        "os",
    ): "the library reads a variable that, where it is stale, hides its own vocabulary",
}
"""(module, import) pairs that may stay, each with its reason."""

WITHOUT_TORCH = (
    "antiphon.app.cli",
    "antiphon.app.launch",
    "antiphon.engine.checkpoint.files",
    "antiphon.engine.checkpoint.hub",
    "antiphon.engine.options",
    "antiphon.engine.process.client",
    "antiphon.engine.scheduler.prefix_cache",
    "antiphon.engine.scheduler.scheduler",
    "antiphon.engine.scripted.engine",
)
"""Modules that work where torch is not installed: the front end, the parent of the engine process, and pure rules."""

IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "breakpoint"}


def test_every_package_is_placed() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - {"tests"}
    assert folders == set(PACKAGES), "a new package must be placed here, in tests/syntax.py and in pyproject.toml"
    assert set(OURS) == set(THEIRS) == set(PACKAGES)


@pytest.mark.parametrize("module", modules(), ids=str)
def test_imports_keep_the_layers(module: Path) -> None:
    package = module.parts[0]
    for line, level, target in imports(tree(module)):
        where = f"{module}:{line}"
        assert level == 0, f"{where}: relative import; packages are imported by name"
        top, _, ours = target.partition(".")
        if top == "antiphon":
            assert any(_within(ours, allowed) for allowed in OURS[package]), f"{where}: {package} imports {target}"
        elif top not in sys.stdlib_module_names:
            assert top in THEIRS[package], f"{where}: {package} imports {top}"


@pytest.mark.parametrize("module", [*modules(), *modules_of_tests()], ids=str)
def test_no_folder_is_imported_by_its_bare_name(module: Path) -> None:
    """`app` beside `antiphon.app` would be a second copy of every class."""
    bare = [(line, name) for line, _, name in imports(tree(module)) if name.split(".")[0] in PACKAGES]
    assert not bare, f"{module}: import antiphon.{bare[0][1]} instead (line {bare[0][0]})"


@pytest.mark.parametrize("module", [module for module in modules() if module.parts[0] in PURE], ids=str)
def test_the_pure_packages_stay_pure(module: Path) -> None:
    source = tree(module)
    touched = {target.split(".")[0] for _, _, target in imports(source)} & IMPURE
    excused = {name for path, name in EXCUSED if path == str(module)}
    assert excused <= touched, f"{module}: no longer needs its excuse for {sorted(excused - touched)}"
    touched -= excused
    assert not touched, f"{module}: imports {sorted(touched)}; take it as an argument"
    asynchronous = [node.lineno for node in ast.walk(source) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not asynchronous, f"{module}: async code at lines {asynchronous}"
    calls = {
        node.func.id for node in ast.walk(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & IMPURE_CALLS, f"{module}: calls {sorted(calls & IMPURE_CALLS)}"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_a_module_loads_no_torch(module: str) -> None:
    loads = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"


def _within(target: str, allowed: str) -> bool:
    """Whether `target` is `allowed` or stands below it; naming a package on the way to an allowed module is fine."""
    return target == allowed or target.startswith(f"{allowed}.") or allowed.startswith(f"{target}.")
