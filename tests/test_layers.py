"""Import rules of the packages, and what the pure packages must not use. A package without rules fails."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.syntax import (
    PACKAGES,
    ROOT,
    find_imports,
    list_source_modules,
    list_test_modules,
    module_name,
    parse_module,
)

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
    "antiphon.engine.malloc_tuning",
    "antiphon.engine.options",
    "antiphon.engine.process.client",
    "antiphon.engine.remote.engine",
    "antiphon.engine.remote.model_files",
    "antiphon.engine.scheduler.prefix_cache",
    "antiphon.engine.scheduler.scheduler",
    "antiphon.engine.scripted.engine",
)
"""Modules that work without torch: the front end, the parent of the engine process, and the pure scheduling rules."""

ROOM_CIRCLES: dict[str, tuple[frozenset[str], ...]] = {
    "engine": (frozenset({"adapters", "fit", "forward", "load"}),),
}
"""Rooms that still import each other in a circle. The list only becomes shorter."""

IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "breakpoint"}


def test_every_package_has_import_rules() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - {"tests", "bench", "training"}
    assert folders == set(PACKAGES), "add a new package here, in tests/syntax.py and in pyproject.toml"
    assert set(INTERNAL_IMPORTS) == set(EXTERNAL_IMPORTS) == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_respect_the_layers(package: str) -> None:
    faults = []
    for module in list_source_modules():
        if module.parts[0] != package:
            continue
        for line, level, target in find_imports(parse_module(module)):
            location = f"{module}:{line}"
            if level:
                faults.append(f"{location}: relative import; packages are imported by name")
            elif not _may_import(package, target):
                faults.append(f"{location}: {package} imports {target}")
    assert not faults


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_form_no_circle(package: str) -> None:
    imports = _room_imports(package)
    reached = {room: _reach(room, imports) for room in imports}
    circles = {frozenset(other for other in reached[room] if room in reached[other]) for room in imports}
    found = {circle for circle in circles if circle}
    assert found == set(ROOM_CIRCLES.get(package, ())), "move what both rooms need to a room below them"


def test_rooms_of_app_import_from_floors_below() -> None:
    floors = _read_floors()
    heights = {room: height for height, floor in enumerate(reversed(floors)) for room in floor}
    imports = _room_imports("app")
    assert sorted(heights) == sorted(imports), "the picture in ARCHITECTURE.md shows every room once"
    faults = [
        f"{room} imports {target}"
        for room, targets in imports.items()
        for target in targets
        if heights[target] >= heights[room]
    ]
    assert not faults


def test_picture_shows_each_room_once() -> None:
    rooms = [room for floor in _read_floors() for room in floor]
    assert len(rooms) == len(set(rooms))


def _read_floors() -> list[list[str]]:
    """Returns the rooms of `app`, floor by floor from the top, as ARCHITECTURE.md shows them."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return [line.split() for line in text.partition("```floors\n")[2].partition("```")[0].splitlines()]


def _room_imports(package: str) -> dict[str, set[str]]:
    """Returns the other rooms of a package that each room imports. A room is a folder or module under the package."""
    modules = {module_name(module): module for module in list_source_modules() if module.parts[0] == package}
    imports: dict[str, set[str]] = {name.split(".")[1]: set() for name in modules if "." in name}
    for name, module in modules.items():
        for _, _, target in find_imports(parse_module(module)):
            imported = target.removeprefix("antiphon.")
            if "." in name and "." in imported and imported in modules:
                imports[name.split(".")[1]].add(imported.split(".")[1])
    return {room: targets - {room} for room, targets in imports.items()}


def _reach(room: str, imports: dict[str, set[str]]) -> set[str]:
    """Returns the rooms that a room imports, directly or through others."""
    reached: set[str] = set()
    waiting = list(imports[room])
    while waiting:
        target = waiting.pop()
        if target not in reached:
            reached.add(target)
            waiting += imports[target]
    return reached


def _may_import(package: str, target: str) -> bool:
    top, _, submodule = target.partition(".")
    if top == "antiphon":
        return any(_is_allowed(submodule, allowed) for allowed in INTERNAL_IMPORTS[package])
    return top in sys.stdlib_module_names or top in EXTERNAL_IMPORTS[package]


def test_no_test_imports_a_package_by_its_bare_name() -> None:
    """Importing both `app` and `antiphon.app` would create two copies of every class. The rules above allow no `app`."""
    bare = [
        f"{module}:{line}: import antiphon.{name} instead"
        for module in list_test_modules()
        for line, _, name in find_imports(parse_module(module))
        if name.split(".")[0] in PACKAGES
    ]
    assert not bare


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_have_no_side_effects(package: str) -> None:
    faults = [
        f"{module}: {fault}"
        for module in list_source_modules()
        if module.parts[0] == package
        for fault in _find_side_effects(module)
    ]
    assert not faults


def _find_side_effects(module: Path) -> list[str]:
    source = parse_module(module)
    impure = {target.split(".")[0] for _, _, target in find_imports(source)} & IMPURE_MODULES
    exceptions = {name for path, name in IMPURE_IMPORT_EXCEPTIONS if path == str(module)}
    calls = {
        node.func.id for node in ast.walk(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return [
        *(f"no longer needs its exception for {name}" for name in sorted(exceptions - impure)),
        *(f"imports {name}; take it as an argument" for name in sorted(impure - exceptions)),
        *(
            f"async code at line {node.lineno}"
            for node in ast.walk(source)
            if isinstance(node, ast.AsyncFunctionDef | ast.Await)
        ),
        *(f"calls {name}" for name in sorted(calls & IMPURE_CALLS)),
    ]


def test_modules_do_not_import_torch() -> None:
    code = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if found := [name for name in ("torch", "transformers") if name in sys.modules]:
        sys.exit(f"{module} imports {found}")
"""
    done = subprocess.run([sys.executable, "-c", code, *WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _is_allowed(target: str, allowed: str) -> bool:
    """Tells whether `target` is `allowed`, a submodule of it, or a package that contains it."""
    return target == allowed or target.startswith(f"{allowed}.") or allowed.startswith(f"{target}.")
