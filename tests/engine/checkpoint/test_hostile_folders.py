"""Files of a model's folder that no honest program has written: each is refused in one line, before anything is loaded."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.checkpoint.generation_settings import read_eos_ids
from antiphon.engine.checkpoint.gguf.header import ARRAY, MAGIC, STRING, read_gguf_sizes
from antiphon.engine.embeddings.repository import read_repository
from antiphon.engine.errors import LoadError

CONFIG = b'{"model_type": "qwen3"}'
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def make_safetensors(entries: Any) -> bytes:
    """Returns a safetensors file with this header, and without weights."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header


def make_entry(**changes: Any) -> bytes:
    """Returns a safetensors file with one tensor of this description."""
    return make_safetensors({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} | changes})


FILES: dict[str, tuple[dict[str, bytes], str]] = {
    "nested config": ({"config.json": DEEP}, r"config\.json: not readable as JSON \(it is nested too deeply\)"),
    "config in another encoding": ({"config.json": b"\xff\xfe\xfa"}, r"config\.json: not readable as JSON"),
    "number with many digits": (
        {"config.json": b'{"model_type": ' + b"9" * 10_000 + b"}"},
        r"config\.json: not readable",
    ),
    "nested generation settings": ({"generation_config.json": DEEP}, r"generation_config\.json: not readable as JSON"),
    "nested index": ({"model.safetensors.index.json": DEEP}, r"index\.json: not readable as JSON"),
    "index of lists": ({"model.safetensors.index.json": b'{"weight_map": {"w": [["x"]]}}'}, "is missing"),
    "index of another folder": (
        {"model.safetensors.index.json": b'{"weight_map": {"w": "../secret"}}'},
        r"\.\./secret is outside of the model's folder",
    ),
    "index of an absolute path": (
        {"model.safetensors.index.json": b'{"weight_map": {"w": "/etc/passwd"}}'},
        "/etc/passwd is outside of the model's folder",
    ),
    "nested header": ({"model.safetensors": make_safetensors(DEEP)}, "is not safetensors"),
    "header of a list": ({"model.safetensors": make_safetensors([])}, "is not safetensors"),
    "entry of a number": ({"model.safetensors": make_safetensors({"w": 1})}, "is not safetensors"),
    "shape of a text": ({"model.safetensors": make_entry(shape="ab")}, "is not safetensors"),
    "negative shape": ({"model.safetensors": make_entry(shape=[-1])}, "is not safetensors"),
    "offset of a text": ({"model.safetensors": make_entry(data_offsets=["a", "b"])}, "is not safetensors"),
    "offset beyond the file": ({"model.safetensors": make_entry(data_offsets=[0, 10**30])}, "its header promises"),
    "offset of a missing byte": ({"model.safetensors": make_entry(data_offsets=[0, 1])}, "its header promises"),
    "header beyond the file": ({"model.safetensors": struct.pack("<Q", 2**63) + b"{}"}, "is cut short"),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    files, message = FILES[name]
    whole = {"config.json": CONFIG, "model.safetensors": make_entry()}
    for file, content in (whole | files).items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(LoadError, match=message) as raised:
        inspect_checkpoint(tmp_path)
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 500


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors", "adapter_config.json", "chat_template.jinja"]
)
def test_file_that_has_no_end_is_never_opened(name: str, kind: str, tmp_path: Path) -> None:
    for file, content in {"config.json": CONFIG, "model.safetensors": make_entry()}.items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    for read in (inspect_checkpoint, lambda folder: read_repository(folder, "embedding")):
        with pytest.raises(LoadError, match=f"{name} is a (named pipe|device), not a regular file; remove it"):
            read(tmp_path)


def test_weights_that_are_a_pipe_by_their_index_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "model.safetensors.index.json").write_bytes(b'{"weight_map": {"w": "sub/part.safetensors"}}')
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub/part.safetensors")
    with pytest.raises(LoadError, match="a named pipe, not a regular file"):
        inspect_checkpoint(tmp_path)


def make_gguf(value: bytes, *, values: int = 1, tensors: int = 0) -> bytes:
    """Returns the header of a GGUF file with one key, `k`, and its value."""
    return struct.pack("<4sIQQ", MAGIC, 3, tensors, values) + struct.pack("<Q", 1) + b"k" + value


def nest_arrays(depth: int) -> bytes:
    """Returns arrays of one array each, the innermost of no numbers."""
    return struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", 4, 0)


GGUF_HEADERS = {
    "nested arrays": make_gguf(nest_arrays(100_000)),
    "more numbers than bytes": make_gguf(struct.pack("<IIQ", ARRAY, 4, 2**63)),
    "more texts than bytes": make_gguf(struct.pack("<IIQ", ARRAY, STRING, 2**63)),
    "a text beyond the file": make_gguf(struct.pack("<IQ", STRING, 2**64 - 1)),
    "more keys than bytes": make_gguf(struct.pack("<IB", 0, 1), values=2**63),
    "unknown type": make_gguf(struct.pack("<I", 99)),
    "more dimensions than bytes": make_gguf(
        struct.pack("<IB", 0, 1) + struct.pack("<Q", 1) + b"w" + struct.pack("<I", 2**32 - 1), tensors=1
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("name", GGUF_HEADERS)
def test_damaged_gguf_header_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(GGUF_HEADERS[name])
    with pytest.raises(LoadError, match="is not a GGUF file of version 2 or 3, or is cut short"):
        read_gguf_sizes(file)


def test_shallow_arrays_of_a_gguf_header_are_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(make_gguf(nest_arrays(2)))
    assert read_gguf_sizes(file) == {}


@pytest.mark.parametrize("value", ["2", [["2"]], [2.5], {"a": 2}])
def test_ids_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(LoadError, match="eos_token_id is no list of token ids"):
        read_eos_ids({"eos_token_id": value}, None)
    assert read_eos_ids({}, 3) == (3,)
    assert read_eos_ids({"eos_token_id": [4, 5]}, 3) == (4, 5)
    assert read_eos_ids({"eos_token_id": None}, 3) == ()
