"""The options of each of several models: `antiphon serve A B` becomes one `ServeOptions` for A and one for B."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from antiphon.app.options.serve_options import FORMAT_FIELDS, ModelOption, ServeError, ServeOptions
from antiphon.engine.options import EngineOptions, LoraModule


def split_models(options: ServeOptions) -> list[ServeOptions]:
    """Returns the options of each model that generates text. Raises `ServeError` if it is unclear which one is meant.

    Without a model, the embedded one is served.
    """
    sources = [_split_name(text) for text in options.models] or [("", "")]
    is_single = len(sources) == 1
    if not is_single:
        _check_several(options)
    models = []
    for index, (name, source) in enumerate(sources):
        aliases = options.served_model_names if is_single else options.served_model_names[index : index + 1]
        models.append(
            structs.replace(
                options, models=(source,) if source else (), name=name, served_model_names=aliases, model_options=()
            )
        )
    _check_keys(models, (option.model for option in options.model_options), "--model-option")
    adapters = options.engine_options.lora_modules
    return [_with_own_options(model, models, options.model_options, adapters) for model in models]


def default_name(source: str) -> str:
    """Returns the name of a model that was given none: a hub id, or the last part of a folder's path."""
    folder = Path(source).expanduser()
    return folder.resolve().name if folder.exists() else source


def _split_name(text: str) -> tuple[str, str]:
    """Returns name and source of NAME=SOURCE; the name is empty if there is none."""
    name, separator, source = text.partition("=")
    if not separator or "/" in name or Path(text).expanduser().exists():
        return "", text
    if not (name.strip() and source.strip()):
        raise ServeError(f"{text}: write NAME=PATH_OR_HUB_ID, or leave the name out")
    return name.strip(), source.strip()


def _check_several(options: ServeOptions) -> None:
    """Raises `ServeError` for an option that several models cannot have."""
    if options.engine != "torch":
        raise ServeError(f"--engine {options.engine} serves one model: start a server for each")
    if options.record is not None:
        raise ServeError("--record records one model: start a server for it alone")
    for field in FORMAT_FIELDS:
        if getattr(options, field) is not None:
            flag = field.replace("_", "-")
            raise ServeError(f"--{flag} belongs to one model: write --model-option MODEL:{flag}=…")
    count = len(options.served_model_names)
    if count not in (0, len(options.models)):
        raise ServeError(
            f"{len(options.models)} models have {count} --served-model-name: give one for each, in order, "
            "or write NAME=PATH_OR_HUB_ID"
        )


def _keys(model: ServeOptions) -> set[str]:
    """Returns the names by which other options can mean the model."""
    source = model.model or ""
    return {model.name or default_name(source), source, *model.served_model_names} - {""}


def _check_keys(models: Sequence[ServeOptions], keys: Iterable[str], flag: str) -> None:
    known = sorted(set().union(*map(_keys, models)))
    for key in keys:
        if sum(key in _keys(model) for model in models) != 1:
            raise ServeError(f"{flag} {key}:…: no single model has this name; use one of {', '.join(known)}")


def _with_own_options(
    model: ServeOptions,
    models: Sequence[ServeOptions],
    given: Iterable[ModelOption],
    adapters: Iterable[LoraModule],
) -> ServeOptions:
    """Returns the model's options, with those that are given by its name, and its own adapters."""
    own = {option.field: option.value for option in given if option.model in _keys(model)}
    engine = structs.replace(
        model.engine_options,
        lora_modules=tuple(_own_adapters(model, models, adapters)),
        **{field: value for field, value in own.items() if field in EngineOptions.__struct_fields__},
    )
    fields = {field: value for field, value in own.items() if field not in EngineOptions.__struct_fields__}
    return structs.replace(model, engine_options=engine, **fields)


def _own_adapters(
    model: ServeOptions, models: Sequence[ServeOptions], adapters: Iterable[LoraModule]
) -> Iterable[LoraModule]:
    """Yields the adapters of a model. NAME=PATH belongs to the only model, MODEL:NAME=PATH to the one of that name."""
    for adapter in adapters:
        base, _, name = adapter.name.partition(":")
        named = [each for each in models if name and base in _keys(each)]
        if not named and len(models) > 1:
            raise ServeError(f"--lora {adapter.name}=…: write MODEL:NAME=PATH, since there are several models")
        if named and named[0] is model:
            yield structs.replace(adapter, name=name)
        elif not named:
            yield adapter
