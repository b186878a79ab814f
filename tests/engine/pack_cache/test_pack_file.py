"""Files of packed weights: what is written is read, at aligned addresses, and damage is found."""

import stat
from pathlib import Path

import pytest
import torch

from antiphon.engine.pack_cache.pack_file import ALIGNMENT_BYTES, DamagedPackError, PackEntry, PackFile, PackFileWriter

ENTRIES = {
    "first": PackEntry(
        {"weights": torch.arange(10_000, dtype=torch.uint8).view(100, 10, 10), "scales": torch.rand(7)},
        {"inputs": 64, "class": "Some"},
    ),
    "second": PackEntry({"halves": torch.rand(3, 5).half(), "empty": torch.empty(0, 4), "one": torch.tensor(3)}, {}),
}


def write_file(path: Path) -> Path:
    writer = PackFileWriter(path)
    for name, entry in ENTRIES.items():
        writer.add(name, entry)
    writer.commit()
    return path


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = PackFile(write_file(tmp_path / "a.packed"))
    assert file.names == set(ENTRIES) and file.load("third") is None
    for name, expected in ENTRIES.items():
        entry = file.load(name)
        assert entry is not None and entry.details == expected.details
        assert entry.tensors.keys() == expected.tensors.keys()
        for field, tensor in expected.tensors.items():
            mapped = entry.tensors[field]
            assert mapped.dtype is tensor.dtype and torch.equal(mapped, tensor)
            assert not mapped.numel() or mapped.data_ptr() % ALIGNMENT_BYTES == 0


def test_only_the_user_reads_the_file_and_nothing_else_remains(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.packed")
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_unfinished_file_has_another_name_and_is_discarded(tmp_path: Path) -> None:
    writer = PackFileWriter(tmp_path / "a.packed")
    writer.add("first", ENTRIES["first"])
    assert not (tmp_path / "a.packed").exists()
    writer.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept_bytes", [0, 5, 40, 5_000, -1])
def test_file_that_was_cut_is_damaged(tmp_path: Path, kept_bytes: int) -> None:
    path = write_file(tmp_path / "a.packed")
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(DamagedPackError):
        PackFile(path)


@pytest.mark.parametrize("place", [3, -10, -100])
def test_changed_byte_of_the_name_the_index_or_the_trailer_is_found(tmp_path: Path, place: int) -> None:
    path = write_file(tmp_path / "a.packed")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedPackError):
        PackFile(path)


@pytest.mark.parametrize("place", [ALIGNMENT_BYTES, ALIGNMENT_BYTES + 9_999])
def test_changed_byte_at_the_edges_of_a_weight_is_found(tmp_path: Path, place: int) -> None:
    path = write_file(tmp_path / "a.packed")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedPackError):
        PackFile(path).load("first")
    assert PackFile(path).load("second") is not None
