"""Reads the repository of an embedding or reranking model: its modules, limits and prompt. Needs no torch.

The modules of sentence-transformers (`modules.json`) say how the vectors of the tokens become one vector. Without them,
an encoder's vectors are averaged and a decoder's last one is taken, and the result is normalized.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.engine.checkpoint.formats import check_is_folder, explain_missing_config, explain_missing_weights
from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import check_folder_entries, read_json, read_json_object

EncoderKind = Literal["embedding", "rerank"]
"""`embedding`: a vector for a text. `rerank`: a score for a pair of texts."""

ENCODER_TYPES = frozenset(
    """albert bert big_bird camembert convbert deberta deberta-v2 distilbert electra ernie esm eurobert fnet funnel
    layoutlm longformer luke mobilebert modernbert mpnet mra mt5 nomic_bert nystromformer rembert roberta
    roberta-prelayernorm roformer squeezebert t5 umt5 xlm xlm-roberta xlm-roberta-xl xmod yoso""".split()
)
"""Values of `model_type` of models that read a text in both directions. All others are decoders."""
OFFSET_POSITION_TYPES = frozenset(
    {
        "camembert",
        "esm",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Values of `model_type` of models whose first position comes after the id of the padding token."""
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of a pooling module's configuration, in the order in which several of them are joined, and their modes."""
DEFAULT_INPUT_TOKENS = 8192
"""Longest input in tokens of a model whose files state no limit."""


class SentenceModules(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a repository. `transformer` is the folder of the model and its tokenizer."""

    transformer: Path
    config: dict[str, Any]
    max_tokens: int
    """Longest input in tokens, special tokens included."""
    pooling: tuple[str, ...] = ()
    """Modes whose results are joined; none for a reranking model."""
    dense: tuple[Path, ...] = ()
    """Folders of linear layers that follow the pooling."""
    normalize: bool = True
    lower_case: bool = False
    prompt: str = ""
    """Text to put before each input."""
    note: str = ""
    """How a text becomes a vector, or a pair a score, in one line."""


def read_repository(folder: Path, kind: EncoderKind) -> SentenceModules:
    """Reads and checks a local repository. Raises `LoadError`."""
    check_is_folder(folder)
    check_folder_entries(folder)
    modules = _read_modules(folder)
    transformer = folder / next((path for name, path in modules if name == "Transformer"), "")
    if transformer.is_dir():
        check_folder_entries(transformer)
    if not (transformer / "config.json").is_file():
        raise explain_missing_config(transformer)
    config = read_json_object(transformer / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise LoadError(f"{transformer / 'config.json'}: no model_type; give a model folder in transformers' format")
    if not any((transformer / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise explain_missing_weights(transformer)
    if not (transformer / "tokenizer.json").is_file():
        raise LoadError(f"{transformer}: no tokenizer.json; save the model with a fast tokenizer")
    sentence_config = _read_sentence_config(transformer)
    shared: dict[str, Any] = {
        "transformer": transformer,
        "config": config,
        "max_tokens": _max_tokens(transformer, config, sentence_config),
        "lower_case": sentence_config.get("do_lower_case") is True,
    }
    if kind == "rerank":
        activation = "as they are" if uses_identity(config) else "through a sigmoid"
        return SentenceModules(**shared, note=f"scores {activation}")
    if not modules:
        return _default_modules(config, shared)
    pooling = _read_pooling(folder, modules)
    dense = tuple(folder / path for name, path in modules if name == "Dense")
    normalize = any(name == "Normalize" for name, _ in modules)
    note = f"{' and '.join(pooling)} pooling{', dense' * len(dense)}{', normalized' if normalize else ''}"
    prompt = _default_prompt(folder)
    return SentenceModules(
        **shared, pooling=pooling, dense=dense, normalize=normalize, prompt=prompt, note=f"{note}, by modules.json"
    )


def uses_identity(config: Mapping[str, Any]) -> bool:
    """Tells whether a reranking model's configuration asks for its scores without a sigmoid."""
    nested = config.get("sentence_transformers")
    names = (
        config.get("sbert_ce_default_activation_function"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
    )
    return any(str(name).endswith(".Identity") for name in names)


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the class name and the folder of each module; none if the repository has no `modules.json`."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    try:
        modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in read_json(file)]
    except (TypeError, KeyError):
        raise LoadError(f"{file}: not a list of modules; fetch the file again") from None
    unknown = [name for name, _ in modules if name not in ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")]
    if unknown:
        raise LoadError(f"{file}: the module {unknown[0]} is not supported; choose another embedding model")
    outside = [path for _, path in modules if not (folder / path).resolve().is_relative_to(folder.resolve())]
    if outside:
        raise LoadError(f"{file}: {outside[0]} is outside of the repository; choose another embedding model")
    return modules


def _read_pooling(folder: Path, modules: list[tuple[str, str]]) -> tuple[str, ...]:
    path = next((path for name, path in modules if name == "Pooling"), None)
    if path is None:
        raise LoadError(f"{folder / 'modules.json'}: no pooling module; choose another embedding model")
    file = folder / path / "config.json"
    config = read_json_object(file)
    named = config.get("pooling_mode")
    modes = (
        [named] if isinstance(named, str) else named or [mode for key, mode in POOLING_KEYS.items() if config.get(key)]
    )
    unknown = [mode for mode in modes if mode not in POOLING_KEYS.values()]
    if unknown or not modes:
        raise LoadError(f"{file}: the pooling mode {(unknown or ['none'])[0]} is not supported; choose another model")
    if config.get("include_prompt") is False and _default_prompt(folder):
        raise LoadError(f"{file}: pooling without the prompt is not supported; choose another embedding model")
    return tuple(modes)


def _default_modules(config: Mapping[str, Any], shared: Mapping[str, Any]) -> SentenceModules:
    """Returns what is assumed of a repository without `modules.json`."""
    is_encoder = config["model_type"] in ENCODER_TYPES
    pooling, kind = ("mean", "an encoder") if is_encoder else ("lasttoken", "a decoder")
    note = f"no modules.json: {pooling} pooling, normalized, the default for {kind}"
    return SentenceModules(**shared, pooling=(pooling,), note=note)


def _default_prompt(folder: Path) -> str:
    """Returns the prompt that sentence-transformers puts before each text unless it is told otherwise."""
    file = folder / "config_sentence_transformers.json"
    config = read_json_object(file) if file.is_file() else {}
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    return str(prompts.get(name) or "") if isinstance(prompts, dict) and name is not None else ""


def _read_sentence_config(transformer: Path) -> dict[str, Any]:
    files = sorted(transformer.glob("sentence_*_config.json"))
    return read_json_object(files[0]) if files else {}


def _max_tokens(transformer: Path, config: Mapping[str, Any], sentence_config: Mapping[str, Any]) -> int:
    """Returns the longest input: what the repository asks for, at most the positions of the model."""
    tokenizer_file = transformer / "tokenizer_config.json"
    tokenizer_config = read_json_object(tokenizer_file) if tokenizer_file.is_file() else {}
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config["model_type"] in OFFSET_POSITION_TYPES:
        positions -= (config.get("pad_token_id") or 0) + 1
    own = sentence_config.get("max_seq_length")
    limits = (own, positions, None if own else tokenizer_config.get("model_max_length"))
    return min((int(limit) for limit in limits if isinstance(limit, int) and limit > 0), default=DEFAULT_INPUT_TOKENS)
