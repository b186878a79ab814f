"""The entries of adapters among the served models, and the checks of their folders before anything is loaded."""

import time
from pathlib import Path

from msgspec import structs

from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.registry.model_registry import ServedModel
from antiphon.engine.adapters.lora_config import check_weights_file, read_lora_config


def check_adapter_options(options: ServeOptions) -> None:
    """Raises `ServeError` or `LoadError` if the engine has no adapters, or a folder holds none."""
    engine = options.engine_options
    if options.engine != "torch" and (engine.lora_modules or engine.allow_lora_updates):
        name = "--lora" if engine.lora_modules else "--allow-lora-updates"
        remedy = (
            ""
            if options.engine == "scripted"
            else ": start the servers with the adapter, and name it by --engine-model"
        )
        raise ServeError(f"{name} requires --engine torch{remedy}")
    for module in engine.lora_modules:
        read_lora_config(Path(module.path))
        check_weights_file(Path(module.path))


def describe_adapter(base: ServedModel, name: str, path: str) -> ServedModel:
    """Returns the model of an adapter: the engine and format of its base, under a name of its own."""
    return structs.replace(base, names=(name,), adapter=name, parent=base.names[0], root=path, created=int(time.time()))
