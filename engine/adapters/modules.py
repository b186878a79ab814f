"""Names and folders of adapters, as the command line and clients give them. Needs no torch."""

from pathlib import Path

import msgspec

from antiphon.engine.errors import LoadError


class LoraModule(msgspec.Struct, frozen=True):
    """An adapter to load: the model name by which clients request it, and its folder."""

    name: str
    path: str
    root: str = ""
    """Folder that the adapter's files must be in; empty for an adapter that the operator names."""
    required: bool = True
    """False: an engine that cannot load the adapter starts without it, because it served others before."""


def parse_lora_option(text: str) -> LoraModule:
    """Returns the adapter of `--lora NAME=PATH`, with an absolute path. Raises `LoadError`."""
    name, separator, path = text.partition("=")
    if not (name.strip() and separator and path.strip()):
        raise LoadError(f"--lora {text}: write NAME=PATH, a model name and the adapter's folder")
    return LoraModule(name.strip(), str(Path(path.strip()).expanduser().absolute()))
