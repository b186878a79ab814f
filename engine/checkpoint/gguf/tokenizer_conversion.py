"""Program that writes the configuration and the tokenizer of a GGUF file into a folder: FILE FOLDER.

Ends with status 1 and one line if transformers cannot read the file.
"""

import sys
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from antiphon.engine.errors import one_line


def write_model_folder(file: Path, folder: Path) -> None:
    """Writes config.json, tokenizer.json and the chat template."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if config.architectures is None:
        config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Runs the program."""
    try:
        write_model_folder(Path(sys.argv[1]), Path(sys.argv[2]))
    except ImportError as error:
        sys.exit(f"it needs a package that is not installed ({one_line(error)}); pip install 'antiphon[gguf]'")
    except Exception as error:  # noqa: BLE001  whatever the reader fails with is told in one line
        sys.exit(f"{one_line(error)}; give the model's safetensors weights")


if __name__ == "__main__":
    main()
