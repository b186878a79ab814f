"""Names and folders of adapters, as the command line and clients give them. Needs no torch."""

from pathlib import Path

from antiphon.engine.errors import LoadError
from antiphon.engine.options import LoraModule


def parse_lora_option(text: str) -> LoraModule:
    """Returns the adapter of `--lora NAME=PATH`, with an absolute path. Raises `LoadError`."""
    name, separator, path = text.partition("=")
    if not (name.strip() and separator and path.strip()):
        raise LoadError(f"--lora {text}: write NAME=PATH, a model name and the adapter's folder")
    return LoraModule(name.strip(), str(Path(path.strip()).expanduser().absolute()))
