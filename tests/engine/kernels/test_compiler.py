"""Compilation of C sources, and the cache of compiled libraries."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.kernels import compiler
from antiphon.engine.kernels.compiler import CompilationError, load_library
from tests.engine.kernel_builds import find_c_compiler


@pytest.fixture
def empty_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "antiphon"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source with one function, which returns what the compiler's command defines, or 41."""
    find_c_compiler()
    path = tmp_path / "answer.c"
    path.write_text("#ifndef ANSWER\n#define ANSWER 41\n#endif\nint answer(void) { return ANSWER; }")
    return path


def test_compiled_library_is_cached_and_reused(
    source: Path, empty_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_library(source).answer() == 41
    (library_file,) = empty_cache_folder.iterdir()
    assert library_file.name.startswith("kernels-") and library_file.suffix == ".so"
    monkeypatch.setattr(compiler, "_run_compiler", None)  # a second compilation would fail
    assert load_library(source).answer() == 41


def test_each_source_has_its_own_cached_library(source: Path, empty_cache_folder: Path) -> None:
    for answer in (41, 42):
        source.write_text(f"int answer(void) {{ return {answer}; }}")
        assert load_library(source).answer() == answer
    assert len(list(empty_cache_folder.iterdir())) == 2


def test_each_compiler_command_has_its_own_cached_library(
    source: Path, empty_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (41, 42):
        monkeypatch.setenv("CC", f"{find_c_compiler()} -DANSWER={answer}")
        assert load_library(source).answer() == answer
    assert len(list(empty_cache_folder.iterdir())) == 2


@pytest.mark.parametrize("obstacle", ["a file", "others may write", "no home"])
def test_library_is_compiled_without_a_usable_cache_folder(
    source: Path, obstacle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if obstacle == "a file":
        (tmp_path / "antiphon").write_text("no folder")
    elif obstacle == "others may write":
        (tmp_path / "antiphon").mkdir()
        (tmp_path / "antiphon").chmod(0o777)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert compiler.cache_folder() is None
    assert load_library(source).answer() == 41
    assert obstacle == "a file" or not list(tmp_path.glob("antiphon/*"))


def test_compilation_error_reports_its_first_line(source: Path, empty_cache_folder: Path) -> None:
    source.write_text("int f(void) { return unknown; }")
    with pytest.raises(CompilationError, match=r"error: .*unknown"):
        load_library(source)


def test_truncated_cached_library_is_recompiled(source: Path, empty_cache_folder: Path) -> None:
    load_library(source)
    (library_file,) = empty_cache_folder.iterdir()
    library_file.unlink()  # the library in use must not be overwritten
    library_file.write_bytes(b"half of a file")
    assert load_library(source).answer() == 41
    assert library_file.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("machine", "features", "flags"),
    [
        ("aarch64", "Features : fp asimd asimddp", [("-mcpu=native",), ("-march=armv8.2-a+dotprod",), ()]),
        ("aarch64", "Features : fp asimd", [("-mcpu=native",), ()]),
        ("arm64", "hw.optional.arm.FEAT_DotProd: 1", [("-mcpu=native",), ("-march=armv8.2-a+dotprod",), ()]),
        ("arm64", "hw.optional.arm.FEAT_DotProd: 0", [("-mcpu=native",), ()]),
        ("x86_64", "flags : avx2", [("-march=native",), ("-mcpu=native",), ()]),
    ],
)
def test_flags_of_a_cpu_follow_its_features(machine: str, features: str, flags: list[tuple[str, ...]]) -> None:
    assert list(compiler.select_native_flags(machine, features)) == flags


@pytest.mark.parametrize(
    ("machine", "knows_native", "flags"),
    [
        ("arm64", True, ("-mcpu=native",)),
        ("arm64", False, ("-march=armv8.2-a+dotprod",)),
        ("x86_64", True, ("-march=native",)),
    ],
)
def test_compiler_call_on_macos(
    machine: str, knows_native: bool, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apple's clang has no OpenMP and, on ARM, no `-march=native`; versions before 15 know no `-mcpu=native`, either."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "/usr/sbin/sysctl":
            said = "machdep.cpu.brand_string: Apple M2\nhw.optional.arm.FEAT_DotProd: 1\n"
            return subprocess.CompletedProcess(command, 0, stdout=said, stderr="")
        calls.append(command)
        is_known = knows_native or not any(argument.endswith("=native") for argument in command)
        error = "" if is_known else "clang: error: unsupported argument 'native' to option '-mcpu='"
        return subprocess.CompletedProcess(command, 0 if is_known else 1, stdout="", stderr=error)

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "Path", lambda name: tmp_path / "nothing" if name == "/proc/cpuinfo" else Path(name))
    monkeypatch.setattr(compiler.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(compiler.platform, "machine", lambda: machine)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/usr/bin/{name}" if name in ("cc", "clang") else None)
    monkeypatch.setattr(compiler.subprocess, "run", run)
    compiler._read_cpu_features.cache_clear()
    try:
        compiler._run_compiler((tmp_path / "a.c", tmp_path / "b.c"), tmp_path / "kernels.so")
    finally:
        compiler._read_cpu_features.cache_clear()
    first, second = sorted(calls[-3:-1], key=lambda call: call[-1])
    link = calls[-1]
    assert first == ["cc", *compiler.COMPILER_FLAGS, *flags, "-I", str(compiler.INCLUDE_DIR), "-c", *first[-3:]]
    assert first[-3:] == [str(tmp_path / "a.c"), "-o", str(tmp_path / "0.o")] and second[-1] == str(tmp_path / "1.o")
    assert link[:2] == ["cc", flags[0]] and link[-4:] == ["-shared", "-lm", "-o", str(tmp_path / "kernels.so")]
    assert not any("openmp" in argument for call in calls for argument in call)
