"""Reads the small files of a model's folder: regular files of bounded size, as text or JSON.

A folder comes from somebody else. A pipe in it would never end the reading, a link to a device would fill the memory,
and deeply nested JSON would exhaust the stack.
"""

import json
import stat
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 64 << 20
"""Maximum size of a JSON file. Configurations of tokenizers that list every added token have a few megabytes."""
MAX_TOKENIZER_BYTES = 512 << 20
"""Maximum size of `tokenizer.json`. Those of 260 000 tokens have 35 megabytes."""
MAX_TEMPLATE_BYTES = 1 << 20
"""Maximum size of a chat template. The largest in use have less than 100 kilobytes."""


class ModelFileError(ValueError):
    """Raised for a file that is not read. The message names the file, the reason and the remedy."""


def check_file(file: Path, max_bytes: int) -> None:
    """Raises `ModelFileError` for a path that is no regular file, also by a link, or is too large; else `OSError`."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{file} is not a regular file. Copy the file itself to its place.")
    if status.st_size > max_bytes:
        raise ModelFileError(_too_large(file, max_bytes))


def read_file(file: Path, max_bytes: int) -> bytes:
    """Returns the contents of a regular file. Raises `ModelFileError` or `OSError`."""
    check_file(file, max_bytes)
    with file.open("rb") as stream:
        contents = stream.read(max_bytes + 1)  # files of some file systems have no size until they are read
    if len(contents) > max_bytes:
        raise ModelFileError(_too_large(file, max_bytes))
    return contents


def _too_large(file: Path, max_bytes: int) -> str:
    return f"{file} is larger than {max_bytes >> 20} MiB. Replace it by the model's own file."


def read_template(file: Path) -> str:
    """Returns the text of a chat template. Raises `ModelFileError` or `OSError`."""
    try:
        text = read_file(file, MAX_TEMPLATE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{file} is not UTF-8. Copy the file again.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json_object(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if there is no file or another value. Raises `ModelFileError`."""
    try:
        value = json.loads(read_file(file, MAX_JSON_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not valid JSON: {error}. Copy the file again.") from error
    return value if isinstance(value, dict) else {}
