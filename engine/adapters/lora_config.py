"""`adapter_config.json` of PEFT: the settings that change an adapter's result, and those that are refused.

Every key is either used, known to change nothing when an adapter is served, or refused by its name: an adapter that
would be computed in another way than it was trained must not be served. A client may have written the file, so its
size, its depth and the work of its patterns are limited. This module needs no torch.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.adapters.layer_pattern import LayerPattern, PatternError
from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import is_below, parse_json, read_regular_file

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
MAX_RANK = 512
"""Largest rank of an adapter. PEFT's users have 8 to 256; a larger one is a damaged file, or no adapter."""

MAX_CONFIG_BYTES = 1 << 20
"""Largest configuration. One that names each layer of a model of 126 layers takes 100 KB."""

MAX_PATTERNS, MAX_EXPRESSIONS = 2048, 32
"""Largest number of keys in `rank_pattern` and in `alpha_pattern`, and of those that are more than a layer's name.
PEFT's EVA writes a key for each layer."""

MAX_SHOWN_VALUE_CHARS = 60
"""Characters of a key or a value in a message."""

PLAIN_PATTERN = re.compile(r"[\w.]+")
"""A name of a layer, whose points stand for any character."""

HARMLESS_KEYS = frozenset(
    """auto_mapping corda_config ensure_weight_tying eva_config fan_in_fan_out inference_mode layers_pattern
    layers_to_transform lora_dropout lora_ga_config loftq_config megatron_core peft_version qalora_group_size revision
    runtime_config""".split()
)
"""Keys that matter for training only, or whose effect is visible in the names and shapes of the weights."""

USED_KEYS = frozenset(
    """alpha_pattern base_model_name_or_path bias exclude_modules init_lora_weights lora_alpha peft_type r rank_pattern
    target_modules task_type use_rslora""".split()
)

REFUSAL_REASONS = {
    "modules_to_save": "it replaces whole layers of the base model",
    "use_dora": "DoRA also changes the magnitude of the base model's weights",
    "target_parameters": "it changes parameters that are not linear layers, such as fused experts",
    "trainable_token_indices": "it changes rows of the embedding",
    "layer_replication": "it changes the number of the base model's layers",
    "alora_invocation_tokens": "it applies to a part of the prompt only",
    "lora_bias": "it adds biases",
}
"""Reasons for the refusal of some keys. Other keys are refused as unknown, unless their value is empty."""

PLAIN_INITIALIZATIONS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base model as it is. Others, such as `pissa`, change its weights."""


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The settings of an adapter that its result depends on.

    Methods that compare names of layers raise `PatternError` if an expression takes too many steps.
    """

    rank: int
    alpha: float
    use_rslora: bool = False
    target_modules: tuple[str, ...] | str = ()
    """Names of layers, or the ends of their names after a dot; or a regular expression; or `all-linear`."""
    exclude_modules: tuple[str, ...] | str = ()
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    base_model: str = ""

    def rank_of(self, layer: str) -> int:
        """Returns the rank of the adapter in a layer."""
        return self.rank_pattern.get(self._rank_keys.find(layer), self.rank)

    def scale_of(self, layer: str) -> float:
        """Returns the factor of the adapter's product in a layer."""
        rank, alpha = self.rank_of(layer), self.alpha_pattern.get(self._alpha_keys.find(layer), self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def is_target(self, layer: str) -> bool:
        """Tells whether PEFT would add the adapter to a layer with this name."""
        return not self._excluded.contain(layer) and (
            self.target_modules == "all-linear" or self._targets.contain(layer)
        )

    @cached_property
    def _targets(self) -> "LayerNames":
        return LayerNames(self.target_modules)

    @cached_property
    def _excluded(self) -> "LayerNames":
        return LayerNames(self.exclude_modules)

    @cached_property
    def _rank_keys(self) -> "LayerKeys":
        return LayerKeys(self.rank_pattern)

    @cached_property
    def _alpha_keys(self) -> "LayerKeys":
        return LayerKeys(self.alpha_pattern)


class LayerNames:
    """Names of layers as `target_modules` gives them: names, or the ends of names after a point; or an expression."""

    def __init__(self, names: tuple[str, ...] | str) -> None:
        self._pattern = LayerPattern(names) if isinstance(names, str) and names != "all-linear" else None
        self._names = frozenset(() if isinstance(names, str) else names)

    def contain(self, layer: str) -> bool:
        """Tells whether a layer is one of them."""
        if self._pattern is not None:
            return self._pattern.matches(layer)
        return layer in self._names or any(
            layer[place + 1 :] in self._names for place, character in enumerate(layer) if character == "."
        )


class LayerKeys:
    """Keys of `rank_pattern`: expressions for the ends of names after a point, most of which are names.

    Raises `PatternError`.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: dict[str, LayerPattern | None] = {}
        for key in keys:
            is_name = PLAIN_PATTERN.fullmatch(key) is not None
            self._keys[key] = None if is_name else LayerPattern(rf"(.*\.)?({key})$")
        num_expressions = sum(pattern is not None for pattern in self._keys.values())
        if len(self._keys) > MAX_PATTERNS or num_expressions > MAX_EXPRESSIONS:
            raise PatternError(f"more than {MAX_PATTERNS} keys, or {MAX_EXPRESSIONS} that are more than a name")

    def find(self, layer: str) -> str:
        """Returns the first key that matches a layer, as PEFT does; else the layer's name itself."""
        for key, pattern in self._keys.items():
            if _ends_with(layer, key) if pattern is None else pattern.matches(layer):
                return key
        return layer


def _ends_with(layer: str, key: str) -> bool:
    """Tells whether a layer's name is a key, or ends with it after a point. A point of the key is any character."""
    start = len(layer) - len(key)
    if start < 0 or (start > 0 and layer[start - 1] != "."):
        return False
    return all(expected in (found, ".") for expected, found in zip(key, layer[start:], strict=True))


def read_lora_config(folder: Path, root: Path | None = None) -> LoraConfig:
    """Reads and checks the configuration in an adapter's folder. Raises `LoadError` that names the key.

    `root`: the folder that the adapter's files must be in, None for any.
    """
    check_adapter_folder(folder, root)
    try:
        config = parse_json(read_regular_file(folder / CONFIG_FILE, MAX_CONFIG_BYTES, root))
    except FileNotFoundError:
        raise LoadError(f"adapter {folder}: holds no {CONFIG_FILE}; name a folder that PEFT has saved") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"adapter {folder}: {CONFIG_FILE} cannot be read ({error}); copy the adapter again") from None
    if not isinstance(config, dict):
        raise LoadError(f"adapter {folder}: {CONFIG_FILE} is no JSON object; copy the adapter again")
    _refuse_unsupported(folder, config)
    try:
        read = msgspec.convert(
            {
                "rank": config.get("r", 8),
                "alpha": config.get("lora_alpha", 8),
                "use_rslora": config.get("use_rslora") or False,
                "target_modules": config.get("target_modules") or (),
                "exclude_modules": config.get("exclude_modules") or (),
                "rank_pattern": config.get("rank_pattern") or {},
                "alpha_pattern": config.get("alpha_pattern") or {},
                "base_model": config.get("base_model_name_or_path") or "",
            },
            LoraConfig,
        )
        read.is_target(""), read.scale_of("")  # compiles the patterns
    except (msgspec.ValidationError, PatternError) as error:
        raise LoadError(f"adapter {folder}: {CONFIG_FILE} is invalid ({error}); copy the adapter again") from None
    if not all(math.isfinite(alpha) for alpha in (read.alpha, *read.alpha_pattern.values())):
        raise LoadError(f"adapter {folder}: lora_alpha and alpha_pattern must be finite numbers; copy it again")
    return read


def check_adapter_folder(folder: Path, root: Path | None) -> None:
    """Raises `LoadError` unless the folder exists, in the folder `root` if one is given."""
    if root is not None and not is_below(folder, root):
        raise LoadError(f"adapter {folder}: it is not in a folder of --lora-dir; copy it there")
    if not os.path.isdir(folder):  # noqa: PTH112  the method raises for names that are too long
        raise LoadError(f"adapter {folder}: there is no such folder; name a folder that PEFT has saved")


def check_weights_file(folder: Path) -> Path:
    """Returns the file with the adapter's weights. Raises `LoadError`. Pickles are never read."""
    path = folder / WEIGHTS_FILE
    if path.is_file():
        return path
    if (folder / PICKLE_FILE).exists():
        raise LoadError(f"adapter {folder}: {PICKLE_FILE} may run code and is never read; save it as {WEIGHTS_FILE}")
    raise LoadError(f"adapter {folder}: holds no {WEIGHTS_FILE}; name a folder that PEFT has saved")


def _refuse_unsupported(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises `LoadError` for the first key that cannot be served."""
    if str(config.get("peft_type") or "LORA").upper() != "LORA":
        raise _refuse(folder, "peft_type", config["peft_type"], "only LORA is supported")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise _refuse(folder, "task_type", config["task_type"], "only CAUSAL_LM is supported")
    if config.get("bias") not in (None, "none"):
        raise _refuse(folder, "bias", config["bias"], "it changes biases of the base model")
    initialization = config.get("init_lora_weights")
    if initialization not in PLAIN_INITIALIZATIONS:
        raise _refuse(
            folder,
            "init_lora_weights",
            initialization,
            "it changed the weights of the base model; convert the adapter with PEFT's "
            "`path_initial_model_for_weight_conversion`",
        )
    for key, value in config.items():
        if value and key not in HARMLESS_KEYS | USED_KEYS:
            raise _refuse(folder, key, value, REFUSAL_REASONS.get(key, "this key is unknown here"))
    ranks = {"r": config.get("r", 8), **(config.get("rank_pattern") or {})}
    for key, rank in ranks.items():
        if not isinstance(rank, int) or not 0 < rank <= MAX_RANK:
            raise _refuse(folder, key, rank, f"a rank must be an integer from 1 to {MAX_RANK}")


def _refuse(folder: Path, key: str, value: Any, reason: str) -> LoadError:
    shown = clip(msgspec.json.encode(value).decode())
    return LoadError(f"adapter {folder}: {CONFIG_FILE} has {clip(key)} = {shown}, which is not supported: {reason}")


def clip(text: str, max_chars: int = MAX_SHOWN_VALUE_CHARS) -> str:
    """Returns a text of the adapter's files as messages show it."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
