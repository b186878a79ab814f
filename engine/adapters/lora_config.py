"""`adapter_config.json` of PEFT: the settings that change an adapter's result, and those that are refused.

Every key is either used, known to change nothing when an adapter is served, or refused by its name: an adapter that
would be computed in another way than it was trained must not be served. This module needs no torch.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.errors import LoadError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
MAX_RANK = 512
"""Largest rank of an adapter. PEFT's users have 8 to 256; a larger one is a damaged file, or no adapter."""

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
"""Values of ``init_lora_weights`` that leave the base model as it is. Others, such as ``pissa``, change its weights."""


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an adapter that its result depends on."""

    rank: int
    alpha: float
    use_rslora: bool = False
    target_modules: tuple[str, ...] | str = ()
    """Names of layers, or the ends of their names after a dot; or a regular expression; or ``all-linear``."""
    exclude_modules: tuple[str, ...] | str = ()
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    base_model: str = ""

    def rank_of(self, layer: str) -> int:
        """Returns the rank of the adapter in a layer."""
        return self.rank_pattern.get(_find_pattern(self.rank_pattern, layer), self.rank)

    def scale_of(self, layer: str) -> float:
        """Returns the factor of the adapter's product in a layer."""
        rank, alpha = self.rank_of(layer), self.alpha_pattern.get(_find_pattern(self.alpha_pattern, layer), self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def is_target(self, layer: str) -> bool:
        """Tells whether PEFT would add the adapter to a layer with this name."""
        return not _matches(self.exclude_modules, layer) and (
            self.target_modules == "all-linear" or _matches(self.target_modules, layer)
        )


def read_lora_config(folder: Path) -> LoraConfig:
    """Reads and checks the configuration in an adapter's folder. Raises :class:`LoadError` that names the key."""
    if not folder.is_dir():
        raise LoadError(f"adapter {folder}: there is no such folder; name a folder that PEFT has saved")
    try:
        config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes())
    except FileNotFoundError:
        raise LoadError(f"adapter {folder}: holds no {CONFIG_FILE}; name a folder that PEFT has saved") from None
    except (OSError, msgspec.DecodeError) as error:
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
    except (msgspec.ValidationError, re.error) as error:
        raise LoadError(f"adapter {folder}: {CONFIG_FILE} is invalid ({error}); copy the adapter again") from None
    return read


def check_weights_file(folder: Path) -> Path:
    """Returns the file with the adapter's weights. Raises :class:`LoadError`. Pickles are never read."""
    path = folder / WEIGHTS_FILE
    if path.is_file():
        return path
    if (folder / PICKLE_FILE).exists():
        raise LoadError(f"adapter {folder}: {PICKLE_FILE} may run code and is never read; save it as {WEIGHTS_FILE}")
    raise LoadError(f"adapter {folder}: holds no {WEIGHTS_FILE}; name a folder that PEFT has saved")


def _refuse_unsupported(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises :class:`LoadError` for the first key that cannot be served."""
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
    shown = msgspec.json.encode(value).decode()
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return LoadError(f"adapter {folder}: {CONFIG_FILE} has {key} = {shown}, which is not supported: {reason}")


def _find_pattern(patterns: Mapping[str, Any], layer: str) -> str:
    """Returns the first pattern that matches the end of the layer's name, as PEFT does; else the name itself."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", layer)), layer)


def _matches(targets: tuple[str, ...] | str, layer: str) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, layer) is not None
    return any(layer == target or layer.endswith(f".{target}") for target in targets)
