"""The built distribution: one import name, all data files, and use outside the repository."""

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.built_wheel import build_wheel, clean_environment, find_site_packages, install_wheel
from tests.clients.python_install import install_python_clients
from tests.progress import HANG_TIMEOUT_S
from tests.syntax import PACKAGES, ROOT, list_source_modules

pytestmark = pytest.mark.processes

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
    return build_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel. Dependencies are found in the environment of the tests."""
    return install_wheel(wheel, tmp_path_factory.mktemp("clean") / "venv", sysconfig.get_path("purelib"))


def test_wheel_holds_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
    assert {path.parts[0] for path in names} == {"antiphon", f"antiphon-{_version(wheel)}.dist-info"}
    installed = {
        Path("antiphon", *module.parts) for module in list_source_modules() if module.parts[:2] != ("app", "public")
    }
    assert installed | {Path("antiphon/__init__.py"), Path("antiphon/py.typed")} <= names
    assert not [path for path in names if path.parts[:3] == ("antiphon", "app", "public")]
    assert not [path for path in names if path.suffix == ".md"], "pages of the packages are for a checkout"
    data = [
        path.relative_to(ROOT) for pattern in ("*.c", "*.h", "*.jinja", "*.lark") for path in _package_files(pattern)
    ]
    weights = [path.relative_to(ROOT) for path in (ROOT / "engine/embedded/model").iterdir()]
    assert {Path("antiphon", path) for path in [*data, *weights]} <= names


def test_wheel_holds_the_web_page_byte_for_byte(wheel: Path) -> None:
    """What serves developers only stays out: types of the vendored libraries, the configuration of tools, the README."""
    web = ROOT / "web"
    left_out = {"README.md", "biome.json", "tsconfig.json"}
    left_out.update(path.relative_to(web).as_posix() for path in web.rglob("*.d.ts"))
    files = {
        path.relative_to(web).as_posix(): path.read_bytes()
        for path in web.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name.removeprefix("antiphon/web/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("antiphon/web/")
        }
    assert packed == {name: content for name, content in files.items() if name not in left_out}


def _package_files(pattern: str) -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob(pattern)]


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


@contextmanager
def _run_server(command: list[str], folder: Path, *options: str) -> Iterator[str]:
    """Runs `antiphon serve` in a folder outside the repository. Yields the base URL."""
    args = [*command, "serve", "--port", "0", "--store", "memory", "--log-format", "json", *options]
    with subprocess.Popen(
        args, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
            process.communicate(timeout=HANG_TIMEOUT_S)


def test_installed_command_serves_the_embedded_model(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with _run_server([str(python.with_name("antiphon"))], tmp_path) as url:
        reply = httpx.post(
            f"{url}/responses", json={"model": "antiphon", "input": "Hello!"}, timeout=HANG_TIMEOUT_S
        ).json()
    assert reply["status"] == "completed"
    assert "embedded model" in reply["output"][-1]["content"][0]["text"]


def test_installed_command_serves_the_page(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "hello"\noutput = ["Hello."]\n', encoding="utf-8")
    options = ("--engine", "scripted", "--script", str(script))
    with _run_server([str(python.with_name("antiphon"))], tmp_path, *options) as url:
        page = httpx.get(f"{url.removesuffix('v1')}ui/", timeout=HANG_TIMEOUT_S)
        module = re.findall(r'src="([^"]+)"', page.text)[0]
        reply = httpx.get(page.url.join(module), timeout=HANG_TIMEOUT_S)
    assert reply.content == (ROOT / "web" / "app.js").read_bytes()


def test_scripted_engine_runs_without_torch(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "hello"\noutput = ["Hello."]\n', encoding="utf-8")
    hide_torch = "import sys; sys.modules.update(torch=None, transformers=None, safetensors=None, huggingface_hub=None)"
    command = [str(python), "-c", f"{hide_torch}; from antiphon.app.cli.commands import main; main()"]
    with _run_server(command, tmp_path, "--engine", "scripted", "--script", str(script)) as url:
        reply = httpx.post(f"{url}/responses", json={"model": "scripted", "input": "Hi"}, timeout=HANG_TIMEOUT_S).json()
    assert reply["output"][0]["content"][0]["text"] == "Hello."


@pytest.mark.parametrize(
    ("option", "extra"),
    [("--tool-server=a=http://127.0.0.1:9/mcp", "tools"), ("--hosted=code_interpreter=monty", "code")],
)
def test_tools_without_their_extra_end_the_start_with_one_line(
    python: Path, tmp_path: Path, option: str, extra: str
) -> None:
    hide = "import sys; sys.modules.update(mcp=None, pydantic_monty=None)"
    command = [
        str(python),
        "-c",
        f"{hide}; from antiphon.app.cli.commands import main; main()",
        "serve",
        "--port",
        "0",
        option,
    ]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    (line,) = (done.stdout + done.stderr).splitlines()
    assert done.returncode != 0 and f"antiphon[{extra}]" in line


KIT_PROJECT_TEST = """
import httpx2

from antiphon.kit.testing import assert_conformant


def test_reply(responses_server, event_snapshot):
    server = responses_server(["Hello there."])
    httpx2.post(f"{server.base_url}/responses", json={"model": "scripted", "input": "Hi", "stream": True})
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
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    notes = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [note["message"] for note in notes] == [
        'Revealed type is "def (events: list[antiphon.events.base.Event]) -> list[str]"'
    ]
