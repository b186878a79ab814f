"""The folder of packed files: its limit, faults of the disk, and the keys of its files."""

import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.kernels.int4_layout import pack_int4_weight
from antiphon.engine.kernels.int8_layout import pack_int8_weight
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache import fingerprint, opening
from antiphon.engine.pack_cache import folder as pack_folder
from antiphon.engine.pack_cache.fingerprint import hash_checks, hash_layout, hash_model
from antiphon.engine.pack_cache.folder import find_pack_folder, make_room
from antiphon.engine.pack_cache.pack_file import TRAILER, PackEntry, PackFile, PackFileWriter
from antiphon.engine.pack_cache.session import PackSession, StartChecks

CHECKS = StartChecks("VarlenForward", [["a", "b"], ["c"]], 0.99, 0.5)
LIMIT_BYTES = 1 << 20


def keep_weights(folder: Path, key: str, checks: StartChecks | None = CHECKS) -> dict[str, Any]:
    """Runs a first start that packs two weights. Returns them by name."""
    weight = torch.randn(40, 64)
    packed = {"int8 a b": pack_int8_weight(weight, 8), "int4 c": pack_int4_weight(weight, 8)}
    session = PackSession(folder, key, "checks", LIMIT_BYTES, 100)
    session.begin()
    for name, value in packed.items():
        session.store(name, value)
    session.finish(checks)
    session.wait()
    return packed


def test_second_start_finds_weights_and_checks(tmp_path: Path) -> None:
    packed = keep_weights(tmp_path, "key")
    session = PackSession(tmp_path, "key", "checks", LIMIT_BYTES)
    assert session.is_loaded and session.checks == CHECKS and session.load("int8 c") is None
    for name, expected in packed.items():
        loaded = session.load(name)
        assert type(loaded) is type(expected)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(loaded, expected, strict=True))


def test_other_checks_keep_the_weights_and_are_added(tmp_path: Path) -> None:
    keep_weights(tmp_path, "key")
    session = PackSession(tmp_path, "key", "other", LIMIT_BYTES)
    assert session.is_loaded and session.checks is None
    session.begin()
    session.finish(CHECKS)
    session.wait()
    assert PackSession(tmp_path, "key", "other", LIMIT_BYTES).checks == CHECKS
    assert PackSession(tmp_path, "key", "checks", LIMIT_BYTES).checks == CHECKS


def test_damaged_file_is_deleted_with_its_checks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep_weights(tmp_path, "key")
    path = tmp_path / "key.packed"
    path.write_bytes(path.read_bytes()[:-1])
    assert not PackSession(tmp_path, "key", "checks", LIMIT_BYTES).is_loaded
    assert not list(tmp_path.iterdir())
    assert len(caplog.messages) == 1 and "is packed again" in caplog.text


def test_weight_that_is_damaged_ends_the_use_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep_weights(tmp_path, "key")
    path = tmp_path / "key.packed"
    content = bytearray(path.read_bytes())
    content[64] ^= 1
    path.write_bytes(content)
    session = PackSession(tmp_path, "key", "checks", LIMIT_BYTES)
    assert session.load("int8 a b") is None and session.load("int4 c") is None
    assert session.checks is None and not path.exists() and len(caplog.messages) == 1


def test_files_used_longest_ago_make_room(tmp_path: Path) -> None:
    for age, key in ((50, "c"), (300, "a"), (200, "b")):
        keep_weights(tmp_path, key)
        os.utime(tmp_path / f"{key}.packed", (1e9 - age, 1e9 - age))
    size = (tmp_path / "a.packed").stat().st_size
    assert PackSession(tmp_path, "a", "checks", LIMIT_BYTES).is_loaded, "it is now the one used last"
    session = PackSession(tmp_path, "d", "checks", 3 * size + size // 2, size)
    session.begin()
    session.finish(None)
    session.wait()
    assert {path.name for path in tmp_path.glob("*.packed")} == {"a.packed", "c.packed", "d.packed"}
    assert not list(tmp_path.glob("b-*"))


def test_weights_above_the_limit_are_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = PackSession(tmp_path, "key", "checks", 1000, 1001)
    session.begin()
    session.store("int4 a", pack_int4_weight(torch.randn(8, 64), 8))
    session.finish(CHECKS)
    session.wait()
    assert not list(tmp_path.iterdir()) and "--pack-cache-gib" in caplog.text and len(caplog.messages) == 1


@pytest.mark.parametrize("method", ["add", "commit"])
def test_full_disk_costs_one_line_in_the_log(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackFileWriter, method, fail)
    keep_weights(tmp_path, "key")
    assert not list(tmp_path.iterdir())
    assert len(caplog.messages) == 1 and "No space left on device" in caplog.text


def test_end_of_the_process_ends_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, is_writing = PackFileWriter.add, threading.Event()

    def add_slowly(self: PackFileWriter, *args: Any) -> None:
        is_writing.set()
        add(self, *args)
        time.sleep(0.05)

    monkeypatch.setattr(PackFileWriter, "add", add_slowly)
    registered: list[Any] = []
    monkeypatch.setattr("atexit.register", registered.append)
    session = PackSession(tmp_path, "key", "checks", LIMIT_BYTES, 100)
    session.begin()
    for name in "abc":
        session.store(name, pack_int4_weight(torch.randn(8, 64), 8))
    session.finish(CHECKS)
    assert is_writing.wait(10)
    assert registered == [session.stop]
    registered[0]()
    assert not list(tmp_path.iterdir())
    assert not any(thread.name == "pack-cache" for thread in threading.enumerate())


def test_disk_that_is_nearly_full_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pack_folder, "MIN_FREE_DISK_BYTES", 1 << 60)
    keep_weights(tmp_path, "key")
    assert not list(tmp_path.iterdir()) and "GiB left" in caplog.text


def test_unfinished_files_of_ended_processes_are_deleted(tmp_path: Path) -> None:
    old, new = tmp_path / "x.packed.1.tmp", tmp_path / "y.packed.2.tmp"
    for path in (old, new):
        path.write_bytes(b"unfinished")
    os.utime(old, (1e9, 1e9))
    keep_weights(tmp_path, "key")
    assert new.exists() and not old.exists()


def test_session_without_a_folder_keeps_nothing() -> None:
    session = PackSession(None)
    session.begin()
    session.store("int4 a", pack_int4_weight(torch.randn(8, 64), 8))
    session.finish(CHECKS)
    assert session.load("int4 a") is None and session.checks is None and not session.is_loaded


def test_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_pack_folder() == tmp_path / "antiphon" / "packed"
    (tmp_path / "antiphon").chmod(0o777)
    assert find_pack_folder() is None


def test_reason_for_keeping_nothing_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "antiphon").write_text("a file")
    monkeypatch.setattr(opening, "MIN_KEPT_WEIGHTS", 0)
    kernels: Any = object()
    checkpoint = Checkpoint(tmp_path, {}, {}, {})
    assert not opening.open_pack_session(checkpoint, EngineOptions(quantization="int8"), kernels).is_loaded
    assert f"{tmp_path / 'antiphon'} is no folder that only this user can write to" in caplog.text


def write_model(folder: Path, value: float, time_ns: int = 10**18) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({"weight": torch.full((1000, 1000), value)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    os.utime(folder / "model.safetensors", ns=(time_ns, time_ns))
    return folder


def test_hash_of_a_model_does_not_depend_on_its_place_and_sees_any_change(tmp_path: Path) -> None:
    first = hash_model(write_model(tmp_path / "a", 1.0))
    assert hash_model(write_model(tmp_path / "b", 1.0)) == first
    assert hash_model(write_model(tmp_path / "b", 2.0)) != first, "other weights with the same size and time"
    assert hash_model(write_model(tmp_path / "b", 1.0, 10**18 + 1)) != first
    (tmp_path / "a" / "config.json").write_text('{"tie_word_embeddings": true}')
    assert hash_model(tmp_path / "a") != first


def test_hashes_differ_by_form_cpu_and_options() -> None:
    assert len({hash_layout(*kind) for kind in (("int8", 16), ("int4", 16), ("int8", 8))}) == 3
    assert hash_layout("int8", 16) == hash_layout("int8", 16)
    assert hash_checks(EngineOptions()) == hash_checks(EngineOptions(max_num_seqs=3))


OTHER_OPTIONS: dict[str, Any] = {
    "quantization": "int4",
    "dtype": "bfloat16",
    "pack_linears": False,
    "compile_kernels": False,
    "kv_cache_dtype": "float16",
    "paged_cache": True,
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_checks_are_those_of_the_same_options(name: str) -> None:
    assert hash_checks(EngineOptions(**{name: OTHER_OPTIONS[name]})) != hash_checks(EngineOptions())


@pytest.mark.parametrize("change", ["version", "cpu", "compiler"])
def test_checks_are_those_of_the_same_machine(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_checks(EngineOptions())
    if change == "version":
        monkeypatch.setattr(fingerprint.transformers, "__version__", "0.0")
    elif change == "cpu":
        monkeypatch.setattr(fingerprint, "cpu_features", lambda: "another")
    else:
        monkeypatch.setenv("CC", "another-compiler")
    assert hash_checks(EngineOptions()) != before


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_hash_of_a_model_covers_the_start_of_a_file(name: str, tmp_path: Path) -> None:
    """Beyond the samples, it covers the header of a safetensors file, and hyperparameters of a GGUF file."""
    file = tmp_path / name
    header = 900_000 if name.endswith("safetensors") else 0
    content = bytearray(struct.pack("<Q", header) + bytes(8_000_000))
    place = 8 + 850_000  # between two samples
    hashes = []
    for value in (0, 1):
        content[place] = value
        file.write_bytes(content)
        os.utime(file, ns=(10**18, 10**18))
        hashes.append(hash_model(tmp_path))
    assert hashes[0] != hashes[1]
    file.write_bytes(b"")
    assert hash_model(tmp_path) not in hashes


GIB = 1 << 30


@pytest.mark.parametrize(("missing", "reason"), [(0, None), (1, "GiB left")])
def test_file_must_leave_a_gibibyte_of_the_disk(
    missing: int, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=pack_folder.MIN_FREE_DISK_BYTES + 5 * GIB - missing)
    monkeypatch.setattr(pack_folder.shutil, "disk_usage", lambda _: usage)
    found = make_room(tmp_path, 5 * GIB, 5 * GIB)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(("limit", "left"), [(30, ["a", "b"]), (29, ["b"]), (19, []), (9, None)])
def test_files_are_deleted_until_the_new_one_fits_exactly(limit: int, left: list[str] | None, tmp_path: Path) -> None:
    for age, name in enumerate("ba"):
        (tmp_path / f"{name}.packed").write_bytes(bytes(10))
        os.utime(tmp_path / f"{name}.packed", (1e9 - age, 1e9 - age))
    reason = make_room(tmp_path, 10, limit)
    assert (reason is None) == (left is not None)
    assert sorted(path.stem for path in tmp_path.glob("*.packed")) == (["a", "b"] if left is None else left)


def test_folder_that_cannot_be_made_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "antiphon").mkdir(mode=0o700)
    (tmp_path / "antiphon/packed").write_text("a file")
    assert find_pack_folder() is None
    (tmp_path / "antiphon/packed").unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert find_pack_folder() is None


def rewrite_index(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the index of a file as a program does that knows the format: with the right hash."""
    content = path.read_bytes()
    offset, length, _, magic = TRAILER.unpack(content[-TRAILER.size :])
    index = json.loads(content[offset : offset + length])
    written = change(index)
    data = written if isinstance(written, bytes) else json.dumps(index).encode()
    path.write_bytes(content[:offset] + data + TRAILER.pack(offset, len(data), hashlib.sha256(data).digest(), magic))


def set_field(field: int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Returns a change of a field of the place of a tensor: 0 type, 1 shape, 2 offset, 3 checksum."""

    def change(index: dict[str, Any]) -> None:
        next(iter(index["int4 c"]["tensors"].values()))[field] = value

    return change


DAMAGED_INDEXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no types": set_field(0, "nn"),
    "another type": set_field(0, "int64"),
    "negative shape": set_field(1, [-1]),
    "huge shape": set_field(1, [1 << 40, 1 << 40]),
    "negative offset": set_field(2, -64),
    "offset beyond the file": set_field(2, 1 << 60),
    "another checksum": set_field(3, 1),
    "no tensors": lambda index: index["int4 c"].pop("tensors"),
    "tensor without a field": lambda index: index["int4 c"]["tensors"].pop(next(iter(index["int4 c"]["tensors"]))),
    "another class": lambda index: index["int4 c"]["details"].update({"class": "PackedInt8Weight"}),
    "unknown class": lambda index: index["int4 c"]["details"].update({"class": "Thing"}),
    "class of a list": lambda index: index["int4 c"]["details"].update({"class": []}),
    "a list": lambda _: b"[]",
    "nested": lambda _: b"[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED_INDEXES)
def test_weight_that_the_index_describes_wrongly_is_packed_again(name: str, tmp_path: Path) -> None:
    packed = keep_weights(tmp_path, "key")
    rewrite_index(tmp_path / "key.packed", DAMAGED_INDEXES[name])
    session = PackSession(tmp_path, "key", "checks", LIMIT_BYTES, 100)
    session.begin()
    assert session.load("int4 c") is None
    for key, weight in packed.items():
        session.store(key, weight)
    session.finish(CHECKS)
    session.wait()
    if name == "unknown class":  # of a later version, which may share the folder
        return
    again = PackSession(tmp_path, "key", "checks", LIMIT_BYTES)
    assert type(again.load("int4 c")) is type(packed["int4 c"])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to nothing"])
@pytest.mark.parametrize("name", ["key.packed", "key-checks.json"])
def test_file_of_another_kind_neither_holds_nor_ends_a_start(name: str, kind: str, tmp_path: Path) -> None:
    keep_weights(tmp_path, "key")
    path = tmp_path / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nothing")
    session = PackSession(tmp_path, "key", "checks", LIMIT_BYTES)
    assert session.is_loaded is (name != "key.packed")
    assert session.checks is None


def test_unfinished_file_never_follows_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "packed"
    folder.mkdir()
    for name in (f"key.packed.{os.getpid()}.tmp", f"key-checks.json.{os.getpid()}.tmp"):
        (folder / name).symlink_to(secret)
    keep_weights(folder, "key")
    assert secret.read_text() == "secret"
    assert PackSession(folder, "key", "checks", LIMIT_BYTES).checks == CHECKS


def test_processes_of_the_same_number_write_different_files(tmp_path: Path) -> None:
    """Two containers that share the folder start at once, and each has this process's number."""
    first, second = PackFileWriter(tmp_path / "key.packed"), PackFileWriter(tmp_path / "key.packed")
    entries = {name: PackEntry({"a": torch.full((100,), value)}, {}) for value, name in enumerate("xy")}
    for writer in (first, second):
        for name, entry in entries.items():
            writer.add(name, entry)
    first.commit()
    assert PackFile(tmp_path / "key.packed").names == {"x", "y"}
    second.commit()
    loaded = PackFile(tmp_path / "key.packed").load("y")
    assert loaded is not None and torch.equal(loaded.tensors["a"], entries["y"].tensors["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["key.packed"]
