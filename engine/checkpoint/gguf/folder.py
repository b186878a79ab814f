"""Makes a model folder of a GGUF file: config.json, the tokenizer and the chat template, and a link to the file.

transformers converts them, in a process of its own, so that this process needs no torch. The folder is kept in the
cache for the next start.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon.engine.checkpoint.gguf.header import read_gguf_sizes
from antiphon.engine.errors import LoadError
from antiphon.engine.kernels.compiler import cache_folder, name_cache_folder

SUFFIX = ".gguf"
PART_OF_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")

CONVERSION_TIMEOUT_S = 600
"""Longest time that the conversion of a tokenizer may take."""


def find_gguf_file(folder: Path) -> Path | None:
    """Returns the GGUF file of a folder that has no safetensors. Raises `LoadError` if there are several."""
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files or next(folder.glob("*.safetensors*"), None) is not None:
        return None
    _check_is_whole(files[0])
    if len(files) > 1:
        raise LoadError(f"{folder} holds {len(files)} GGUF files; give the path of one of them")
    return files[0]


def prepare_gguf_folder(path: Path) -> Path:
    """Returns the model folder of a GGUF file, or of a folder that holds one; any other path as it is.

    Raises `LoadError` if transformers cannot read the file.
    """
    if path.is_dir():
        file = None if (path / "config.json").exists() else find_gguf_file(path)
    else:
        file = path if path.suffix == SUFFIX else None
    if file is None:
        return path
    _check_is_whole(file)
    read_gguf_sizes(file)  # a damaged file is told at once
    cache = cache_folder()
    if cache is None:
        raise LoadError(
            f"{file}: {name_cache_folder()} is no folder that only this user can write to, and its tokenizer is "
            "converted there; set XDG_CACHE_HOME"
        )
    status = file.stat()
    identity = repr((str(file.resolve()), status.st_size, status.st_mtime_ns)).encode()
    folder = cache / SUFFIX.lstrip(".") / f"{file.stem}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if not (folder / file.name).exists():
        _convert(file, folder)
    return folder


def _check_is_whole(file: Path) -> None:
    if PART_OF_SPLIT.search(file.name):
        raise LoadError(f"{file} is a part of a split file; join the parts with `llama-gguf-split --merge`")


def _convert(file: Path, folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    command = [
        sys.executable,
        "-m",
        "antiphon.engine.checkpoint.gguf.tokenizer_conversion",
        str(file.resolve()),
        str(scratch),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERSION_TIMEOUT_S, check=False)  # noqa: S603  no shell
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise LoadError(f"{file} cannot be read: {reason}")
        (scratch / file.name).symlink_to(file.resolve())
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
