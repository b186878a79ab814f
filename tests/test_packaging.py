"""The built distribution: one import name, all data files, and use outside the repository."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.clients.python_install import install_python_clients
from tests.syntax import PACKAGES, ROOT, list_source_modules

BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)
"""Files and folders that a build reads."""

OTHER_PROJECT_MODULE = """
from antiphon.events import items, sse, stream
from antiphon.events.base import Event
from antiphon.state.machine import Machine
from antiphon.state.segments import Say


def texts(events: list[Event]) -> list[str]:
    return [event.delta for event in events if isinstance(event, stream.TextDelta)]


def close(machine: Machine) -> list[Event]:
    return [*machine.feed(Say("hello")), *machine.stop()]


def role(message: items.Message) -> str:
    return message.role


reveal_type(texts)
"""


def test_every_folder_with_modules_is_a_listed_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {module.parent for module in list_source_modules()} - {Path("app/public")}
    assert set(config["packages"]) == {"antiphon", *(".".join(("antiphon", *folder.parts)) for folder in folders)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the unpacked sdist, so that a file missing from the sdist is missing from the wheel."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    for name in BUILD_FILES:
        (source / name).symlink_to(ROOT / name)
    (sdist,) = _build("sdist", source, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("antiphon-*")
    (wheel,) = _build("wheel", unpacked, folder / "wheel")
    return wheel


def _build(kind: str, source: Path, out: Path) -> list[Path]:
    """Builds with the installed setuptools, the backend that pip uses, without network access."""
    out.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(out.iterdir())


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel. Dependencies are found in the environment of the tests."""
    return install_wheel(wheel, tmp_path_factory.mktemp("clean") / "venv", sysconfig.get_path("purelib"))


def install_wheel(wheel: Path, folder: Path, *dependencies: str) -> Path:
    """Returns the interpreter of a new environment with the wheel, and with the packages in the folders `dependencies`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], cwd=folder, env=_clean_environment(), check=True)
    site_packages = find_site_packages(folder)
    # Folders added by a .pth file are not searched for further .pth files, so the editable install stays invisible.
    lines = "".join(f"{dependency}\n" for dependency in dependencies)
    (site_packages / "dependencies.pth").write_text(lines, encoding="utf-8")
    command = [str(python), "-c", "import antiphon.app; print(antiphon.app.__file__)"]
    result = subprocess.run(command, cwd=folder, env=_clean_environment(), capture_output=True, text=True, check=True)
    assert Path(result.stdout.strip()).is_relative_to(site_packages)
    return python


def find_site_packages(environment: Path) -> Path:
    """Returns the folder of an environment's packages."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def test_wheel_holds_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
    assert {path.parts[0] for path in names} == {"antiphon", f"antiphon-{_version(wheel)}.dist-info"}
    installed = {
        Path("antiphon", *module.parts) for module in list_source_modules() if module.parts[:2] != ("app", "public")
    }
    assert installed | {Path("antiphon/__init__.py"), Path("antiphon/py.typed")} <= names
    assert not [path for path in names if path.parts[:3] == ("antiphon", "app", "public")]
    data = [
        path.relative_to(ROOT) for pattern in ("*.c", "*.h", "*.jinja", "*.lark") for path in _package_files(pattern)
    ]
    weights = [path.relative_to(ROOT) for path in (ROOT / "engine/embedded/model").iterdir()]
    assert {Path("antiphon", path) for path in [*data, *weights]} <= names


def _package_files(pattern: str) -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob(pattern)]


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _clean_environment() -> dict[str, str]:
    """Returns the environment variables without the path to the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def _run_server(command: list[str], folder: Path, *options: str) -> Iterator[str]:
    """Runs `antiphon serve` in a folder outside the repository. Yields the base URL."""
    args = [*command, "serve", "--port", "0", "--store", "memory", "--log-format", "json", *options]
    with subprocess.Popen(
        args, cwd=folder, env=_clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                if match := re.search(r"http://127\.0\.0\.1:\d+/v1", line):
                    yield match[0]
                    break
            else:
                pytest.fail("".join(lines))
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_installed_command_serves_the_embedded_model(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with _run_server([str(python.with_name("antiphon"))], tmp_path) as url:
        reply = httpx.post(f"{url}/responses", json={"model": "antiphon", "input": "Hello!"}, timeout=60).json()
    assert reply["status"] == "completed"
    assert "embedded model" in reply["output"][-1]["content"][0]["text"]


def test_scripted_engine_runs_without_torch(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "hello"\noutput = ["Hello."]\n', encoding="utf-8")
    hide_torch = "import sys; sys.modules.update(torch=None, transformers=None, safetensors=None, huggingface_hub=None)"
    command = [str(python), "-c", f"{hide_torch}; from antiphon.app.cli import main; main()"]
    with _run_server(command, tmp_path, "--engine", "scripted", "--script", str(script)) as url:
        reply = httpx.post(f"{url}/responses", json={"model": "scripted", "input": "Hi"}, timeout=60).json()
    assert reply["output"][0]["content"][0]["text"] == "Hello."


KIT_PROJECT_TEST = """
import httpx

from antiphon.kit.testing import assert_conformant


def test_reply(responses_server, event_snapshot):
    server = responses_server(["Hello there."])
    httpx.post(f"{server.base_url}/responses", json={"model": "scripted", "input": "Hi", "stream": True})
    assert_conformant(server.streams[0])
    assert event_snapshot == server.streams[0]
    open("stream.sse", "wb").write(server.streams[0])
"""


@pytest.mark.timeout(600)  # the first run installs packages
def test_kit_runs_without_torch(wheel: Path, tmp_path: Path) -> None:
    """The plugin and the commands need what `antiphon[pytest]` depends on, and nothing else."""
    packages = find_site_packages(install_python_clients("kit").parents[1])
    python = install_wheel(wheel, tmp_path / "venv", str(packages))
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_reply.py").write_text(KIT_PROJECT_TEST, encoding="utf-8")

    def run(*command: str | Path) -> str:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    find_torch = (
        "import importlib.util as u; print([name for name in ('torch', 'transformers', 'openai') if u.find_spec(name)])"
    )
    assert run(python, "-c", find_torch).strip() == "[]"
    assert "1 snapshot generated" in run(python, "-m", "pytest", "--snapshot-update")
    assert "1 snapshot passed" in run(python, "-m", "pytest")
    snapshot = (project / "__snapshots__/test_reply/test_reply.txt").read_text(encoding="utf-8")
    assert 'output_text.done                [0.0] msg_1 "Hello there."' in snapshot
    command = python.with_name("antiphon")
    help_page = run(command, "--help")
    assert all(name in help_page for name in ("serve", "check", "record", "replay"))
    run(command, "check", "stream.sse")


def test_another_project_type_checks_against_the_wheel(python: Path, tmp_path: Path) -> None:
    (tmp_path / "other_project.py").write_text(OTHER_PROJECT_MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--output", "json", "--python-executable", str(python)]
    result = subprocess.run(
        [*command, "other_project.py"],
        cwd=tmp_path,
        env=_clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    notes = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [note["message"] for note in notes] == [
        'Revealed type is "def (events: list[antiphon.events.base.Event]) -> list[str]"'
    ]
