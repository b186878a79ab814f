"""`--strict-skips`: every skip is listed, and one that the list of allowed skips does not have fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.skip_report import AllowedSkip, SkipReport, load_allowed_skips
from tests.syntax import ROOT

MODULE = """
import pytest

def test_passes() -> None:
    pass

def test_skips() -> None:
    pytest.skip("npm is not installed")
"""


def run_pytest(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin on the folder alone."""
    options = ["-p", "tests.skip_report", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *args, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "workers"])
def test_unlisted_skip_fails_the_run_and_is_listed(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    (tmp_path / "test_whole_module.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    run = run_pytest(tmp_path, "--strict-skips", *workers)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert "NOT LISTED    1 x test_it.py: npm is not installed" in run.stdout
    assert "NOT LISTED    1 x test_whole_module.py: could not import 'no_such_package'" in run.stdout
    assert "2 skips are not listed in tests/allowed_skips.toml" in run.stdout


def test_run_without_the_option_or_without_skips_passes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    assert run_pytest(tmp_path).returncode == pytest.ExitCode.OK
    run = run_pytest(tmp_path, "--strict-skips", "-k", "passes")
    assert run.returncode == pytest.ExitCode.OK and "0 skips, all of them allowed." in run.stdout


def test_row_allows_its_reason_in_its_file_or_folder_only() -> None:
    report = SkipReport([AllowedSkip("tests/engine", "needs a (GPU|TPU)", "")])
    report.add("tests/engine/test_a.py", "needs a GPU")
    assert not report.find_unlisted()
    for file, reason in (
        ("tests/engine/test_a.py", "needs a GPU and more"),
        ("tests/engine_2/test_a.py", "needs a GPU"),
        ("tests/app/test_a.py", "needs a GPU"),
    ):
        report.add(file, reason)
        report.add(file, reason)
    assert list(report.find_unlisted().values()) == [2, 2, 2]


def test_allowed_skips_name_existing_files_and_give_a_reason() -> None:
    for row in load_allowed_skips():
        assert (ROOT / row.file).exists(), row.file
        assert row.why.endswith(".")


@pytest.mark.parametrize(
    "reason",
    [
        "npm, which installs the SDKs, is not installed",
        "pip did not install python.lock: ERROR: No matching distribution found for openai==3.54.0",
        "curl is not installed",
        "could not import 'torch': No module named 'torch'",
        "no C compiler found (tried cc, gcc, clang)",
    ],
)
def test_missing_programs_are_not_allowed(reason: str) -> None:
    report = SkipReport(load_allowed_skips())
    for file in ("tests/clients/test_node_sdk.py", "tests/engine/kernels/test_library.py", "tests/test_docs.py"):
        report.add(file, reason)
    assert len(report.find_unlisted()) == 3


def test_ci_uses_strict_skips() -> None:
    assert "--strict-skips" in (ROOT / ".ci/run").read_text(encoding="utf-8")
