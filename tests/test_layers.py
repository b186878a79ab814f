"""Import rules of the packages, and what the pure packages must not use. A package without rules fails."""

import ast
import re
import subprocess
import sys
from collections.abc import Container
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import (
    PACKAGES,
    ROOT,
    list_imports,
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
    "app": ("app", "console", "engine", "events", "harmony", "kit", "state"),
    "console": ("console", "kit"),
    "kit": ("kit",),
    "web": (),
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
        "cryptography",
    },
    "kit": {"msgspec", "httpx2", "h11", "click", "rich", "websockets", "pytest", "syrupy", "jsonschema", "referencing"},
    "console": {"msgspec", "httpx2", "click"},
    "web": set(),
    "app": {
        "msgspec",
        "litestar",
        "multipart",
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
        "pydantic_monty",
        "tokenizers",
        "huggingface_hub",
    },
}
"""Third-party packages that each package may import besides the standard library."""

ROOM_IMPORTS = {
    "app/tracing": {"opentelemetry"},
    "app/outbound": {"httpx2"},
    "app/sandbox/media": {"PIL", "numpy", "pypdfium2", "transformers"},
    "app/tools/mcp": {"mcp", "httpx2", "anyio", "pydantic"},
}
"""Third-party packages that only one room may import: they come with an extra."""

PURE_PACKAGES = ("events", "state", "harmony")
PURE_ROOM = "app/turns/core"
"""The room in `app` that is as pure: the same inputs give the same events."""
PURE_ROOM_IMPORTS = (
    "app.turns.core",
    "app.tools.call_rules",
    "app.tools.search.citations",
    "app.turn_types.endings",
    "app.turn_types.step_detail",
    "app.turn_types.turn_prompt",
    "app.turn_types.turn_rules",
    "engine.protocol",
    "events",
    "harmony",
    "state",
)
"""Modules that it may import. Those of `app` are themselves without side effects."""
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
    "antiphon.app.cli.commands",
    "antiphon.app.main.launch",
    "antiphon.engine.checkpoint.files",
    "antiphon.engine.checkpoint.hub",
    "antiphon.engine.embeddings.core",
    "antiphon.engine.embeddings.repository",
    "antiphon.engine.embeddings.worker",
    "antiphon.engine.host.malloc_tuning",
    "antiphon.engine.options",
    "antiphon.engine.process.client",
    "antiphon.engine.remote.engine",
    "antiphon.engine.remote.model_files",
    "antiphon.engine.scheduler.prefix_cache",
    "antiphon.engine.scheduler.scheduler",
    "antiphon.engine.scripted.engine",
)
"""Modules that work without torch: the front end, the parent of the engine process, and the pure scheduling rules."""

BARE_IMPORT = re.compile(rf"^\s*(?:from|import)\b.*?(?<![\w.])(?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
"""A line that may import a package by its bare name. Most modules have none and are not parsed."""

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
        for line, level, target in list_imports(module):
            location = f"{module}:{line}"
            if level:
                faults.append(f"{location}: relative import; packages are imported by name")
            elif not (_may_import(package, target) or target.split(".")[0] in ROOM_IMPORTS.get(str(module.parent), ())):
                faults.append(f"{location}: {package} imports {target}")
    assert not faults


def test_pure_room_imports_what_is_pure() -> None:
    faults = [
        f"{module}:{line}: {target}"
        for module in list_source_modules()
        if module.is_relative_to(PURE_ROOM)
        for line, _, target in list_imports(module)
        if target.startswith("antiphon.")
        and not any(_is_allowed(target.removeprefix("antiphon."), allowed) for allowed in PURE_ROOM_IMPORTS)
    ]
    assert not faults
    pure = (
        f"{name.replace('.', '/')}.py"
        for name in PURE_ROOM_IMPORTS
        if name.startswith("app.") and name != "app.turns.core"
    )
    assert not [fault for name in pure for fault in _find_side_effects(Path(name))]


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_form_no_circle(package: str) -> None:
    assert not _find_circles(_room_imports(package)), "move what both rooms need to a room below them"


@pytest.mark.parametrize("package", PACKAGES)
def test_files_form_no_circle(package: str) -> None:
    """Imports of types only count, too: two files that need each other's types are one file, or lack a third."""
    assert not _find_circles(_file_imports(package)), "move what both files need to a file below them"


@pytest.mark.parametrize("package", ["app", "engine"])
def test_rooms_import_from_floors_below(package: str) -> None:
    floors = _read_floors(package)
    heights = {room: height for height, floor in enumerate(reversed(floors)) for room in floor}
    imports = _room_imports(package)
    rooms = sorted(room for floor in floors for room in floor)
    assert rooms == sorted(imports), "the picture in ARCHITECTURE.md shows every room once"
    faults = [
        f"{room} imports {target}"
        for room, targets in imports.items()
        for target in targets
        if heights[target] >= heights[room]
    ]
    assert not faults


def _read_floors(package: str) -> list[list[str]]:
    """Returns the rooms of a package, floor by floor from the top, as ARCHITECTURE.md shows them."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return [line.split() for line in text.partition(f"```floors {package}\n")[2].partition("```")[0].splitlines()]


def _room_imports(package: str) -> dict[str, set[str]]:
    """Returns the other rooms of a package that each room imports. A room is a folder or module under the package."""
    imports: dict[str, set[str]] = {}
    for name, targets in _file_imports(package).items():
        if "." in name:
            room = name.split(".")[1]
            imports.setdefault(room, set()).update(target.split(".")[1] for target in targets if "." in target)
            imports[room].discard(room)
    return imports


@cache
def _file_imports(package: str) -> dict[str, set[str]]:
    """Returns the modules of a package that each module imports: of `from folder import module`, the module only."""
    modules = {module_name(module): module for module in list_source_modules() if module.parts[0] == package}
    imports = {}
    for name, module in modules.items():
        targets = {target.removeprefix("antiphon.") for _, _, target in list_imports(module)}
        found = {target for target in targets if target in modules} - {name}
        folders = {target.rpartition(".")[0] for target in found}
        imports[name] = {target for target in found if target not in folders or _takes_name(target, targets, modules)}
    return imports


def _takes_name(folder: str, targets: set[str], modules: Container[str]) -> bool:
    """Tells whether a name of the folder's own module is imported."""
    names = (target for target in targets if target.rpartition(".")[0] == folder)
    return any(name not in modules for name in names)


def _find_circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules or rooms that import each other, directly or through others."""
    reached = {name: _reach(name, imports) for name in imports}
    circles = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return sorted(sorted(circle) for circle in circles if circle)


def _reach(name: str, imports: dict[str, set[str]]) -> set[str]:
    """Returns what a module or room imports, directly or through others."""
    reached: set[str] = set()
    waiting = list(imports[name])
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
        if BARE_IMPORT.search((ROOT / module).read_text(encoding="utf-8"))
        for line, _, name in list_imports(module)
        if name.split(".")[0] in PACKAGES
    ]
    assert not bare


@pytest.mark.parametrize("folder", [*PURE_PACKAGES, PURE_ROOM])
def test_pure_folders_have_no_side_effects(folder: str) -> None:
    faults = [
        f"{module}: {fault}"
        for module in list_source_modules()
        if module.is_relative_to(folder)
        for fault in _find_side_effects(module)
    ]
    assert not faults


def _find_side_effects(module: Path) -> list[str]:
    source = parse_module(module)
    impure = {target.split(".")[0] for _, _, target in list_imports(module)} & IMPURE_MODULES
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
