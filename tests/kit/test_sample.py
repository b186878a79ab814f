"""The sample project of an agent's author: it passes as it stands, and a changed event fails readably."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.built_wheel import build_wheel, clean_environment, find_site_packages, install_wheel
from tests.clients.python_install import install_python_clients
from tests.syntax import ROOT

SAMPLE = ROOT / "samples" / "agent"

pytestmark = pytest.mark.timeout(600)  # the first run installs packages


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, openai-agents, and what both depend on."""
    folder = tmp_path_factory.mktemp("sample")
    packages = [find_site_packages(install_python_clients(name).parents[1]) for name in ("kit", "python")]
    return install_wheel(build_wheel(tmp_path_factory), folder / "venv", *packages)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the sample outside the repository."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    return Path(shutil.copytree(SAMPLE, tmp_path / "project", ignore=ignored))


def run_pytest(python: Path, project: Path, *args: str) -> tuple[int, str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(project.parent)}
    command = [python, "-m", "pytest", "-q", *args]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def list_failure_lines(output: str) -> list[str]:
    """Returns what pytest shows of the failed assertion."""
    return [line.removeprefix("E").strip() for line in output.splitlines() if line.startswith("E  ")]


def change_file(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_sample_passes(python: Path, project: Path) -> None:
    status, output = run_pytest(python, project)
    assert status == 0 and "5 passed" in output and "2 snapshots passed" in output, output


def test_changed_lines_and_missing_events_are_shown(python: Path, project: Path) -> None:
    (snapshot,) = project.glob("tests/__snapshots__/test_weather/*.txt")
    change_file(snapshot, 'arguments.done    [1] fc_1 "{\\"city', 'arguments.done    [1] fc_1 "{\\"town')
    drop = 'fault = {kind = "drop_event", at = "response.output_text.done"}'
    change_file(project / "tests/cases.toml", 'name = "summary"', f'name = "summary"\n{drop}')
    changed_tests = ("-k", "test_agent_calls_its_tool_and_reports or test_summary_streams")

    status, output = run_pytest(python, project, *changed_tests)
    assert status == 1, output
    first = "AssertionError: the stream differs from its snapshot: "
    failures = [failure.splitlines() for failure in "\n".join(list_failure_lines(output)).split(first)[1:]]
    assert {failure[0]: failure[1:] for failure in failures} == {
        "test_agent_calls_its_tool_and_reports": [
            "line 9:",
            'output_item.added               [1] function_call fc_1 in_progress name=get_temperature call=call_1 ""',
            'function_call_arguments.delta   [1] fc_1 "{\\"city\\": \\"Oslo\\"}"',
            '- function_call_arguments.done    [1] fc_1 "{\\"town\\": \\"Oslo\\"}"',
            '+ function_call_arguments.done    [1] fc_1 "{\\"city\\": \\"Oslo\\"}"',
            'output_item.done                [1] function_call fc_1 completed name=get_temperature call=call_1 "{\\"city\\": \\"Oslo\\"}"',
            "completed                       completed",
            "- is the snapshot, + is the stream. To accept the stream: pytest --snapshot-update",
        ],
        "test_summary_streams": [
            "line 4:",
            'content_part.added              [0.0] msg_1 output_text ""',
            'output_text.delta               [0.0] msg_1 "Spring comes late."',
            '- output_text.done                [0.0] msg_1 "Spring comes late."',
            'content_part.done               [0.0] msg_1 output_text "Spring comes late."',
            'output_item.done                [0] message msg_1 completed output_text "Spring comes late."',
            "- is the snapshot, + is the stream. To accept the stream: pytest --snapshot-update",
        ],
    }

    status, output = run_pytest(python, project, *changed_tests, "--snapshot-update")
    failure = list_failure_lines(output)
    assert status == 1 and failure[0] == "AssertionError: the stream breaks 2 rules:", output
    codes = [line.split()[1] for line in failure if line.startswith("error ")]
    assert codes == ["sequence-gap", "part-text-never-done"], "the checker names what the update accepted"


def test_packages_of_the_sample_and_of_antiphon_fit_together(python: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "check", "--disable-pip-version-check"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    ours = [line for line in done.stdout.splitlines() if "antiphon" in line or "openai-agents" in line]
    assert not ours, ours
