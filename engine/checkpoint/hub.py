"""Resolves a model argument (a folder, or an id on the Hugging Face hub) to a local folder.

Only the files that serving needs are downloaded: safetensors, JSON, tokenizer files and chat templates; never pickles,
never code. Downloads are stored in huggingface_hub's cache, show its progress bars, and resume if interrupted.
"""

import errno
import re
from pathlib import Path

from antiphon.engine.checkpoint.gguf.folder import prepare_gguf_folder
from antiphon.engine.errors import LoadError

WEIGHTS_PATTERN = "*.safetensors"
ALLOWED_PATTERNS = (
    WEIGHTS_PATTERN,
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "*.tiktoken",
    "vocab.txt",
    "merges.txt",
    "*.spm",
)
IGNORED_PATTERNS = (*(f"*/{pattern}" for pattern in ALLOWED_PATTERNS if pattern != "*.jinja"), "*consolidated*")
"""Files not to download: sub-folders of a repository hold the same weights in other formats (original, onnx, gguf).
Chat templates are the exception: `additional_chat_templates` holds those with a name, such as `tool_use`."""

MODULE_PATTERNS = ("onnx/*", "openvino/*", "original/*", "gguf/*", "coreml/*", "*consolidated*")
"""The same for embedding models, whose sub-folders also hold the parts of the model."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def fetch_checkpoint(
    source: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    with_modules: bool = False,
    with_weights: bool = True,
) -> Path:
    """Returns the local folder of a model. Raises `LoadError`.

    An existing folder is returned unchanged, a GGUF file as the folder that is made of it. Otherwise `source` must be
    a hub id (`owner/name`), which is downloaded, or with `offline` looked up in the local cache only.
    `revision`: branch, tag or commit.
    `with_modules`: downloads the parts of an embedding model, too, which are in sub-folders. `with_weights`: false
    for a model that another server runs.
    """
    path = Path(source).expanduser()
    if path.exists():
        if revision is not None:
            raise LoadError(f"{source}: --revision requires a model of the hub, and this is a folder")
        return prepare_gguf_folder(path)
    if not _HUB_ID.fullmatch(source):
        raise LoadError(f"{source}: no such folder, and not a hub id; write a path, or owner/name")
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  part of the extra `torch`
    except ImportError as error:
        remedy = "to fetch it from the hub, install huggingface_hub, or use `make serve`"
        raise LoadError(f"{source}: no such folder; {remedy}") from error
    try:
        folder = snapshot_download(
            source,
            revision=revision,
            allow_patterns=[each for each in ALLOWED_PATTERNS if with_weights or each != WEIGHTS_PATTERN],
            ignore_patterns=list(MODULE_PATTERNS if with_modules else IGNORED_PATTERNS),
            local_files_only=offline,
        )
    except Exception as error:  # the hub's client raises errors of its HTTP library, too
        name = source if revision is None else f"{source} (revision {revision})"
        raise LoadError(_describe_failure(name, error, offline=offline)) from error
    return Path(folder)


def _describe_failure(source: str, error: Exception, *, offline: bool) -> str:
    """Returns one line for a failed download. Matches classes by name, so that the hub client need not be imported."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if offline:
        return f"{source} is not in the local cache; fetch it once without --offline"
    if "GatedRepoError" in names:
        return f"{source} is gated; accept its terms on huggingface.co, then log in with `hf auth login`"
    if "RevisionNotFoundError" in names:
        return f"{source}: the model is on the hub, but it has no such revision"
    if "RepositoryNotFoundError" in names or "HFValidationError" in names:
        return f"{source}: no such folder and no such model on the hub (or it is private: `hf auth login`)"
    if "LocalEntryNotFoundError" in names or "ConnectionError" in names or "ConnectError" in names:
        return f"{source}: the hub cannot be reached and the model is not in the local cache; give a local folder"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{source}: the disk is full; free some space and start again, the download goes on where it stopped"
    return f"{source}: the download failed ({type(error).__name__}: {error}); start again, it goes on where it stopped"
