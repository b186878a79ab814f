"""Loads the image processors of transformers without torch, from the content of a model's files.

The processor of a family asks its tokenizer for the texts of special tokens only, so a stand-in with these takes the
tokenizer's place, and no vocabulary is read. The image processors are the ones that compute with Pillow and numpy.
"""

import importlib
import json
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.app.sandbox.media.messages import ProcessorFacts, ProcessorFiles

HIDDEN_PACKAGES = ("torch", "torchvision", "torchaudio", "jax", "flax", "tensorflow", "scipy", "sklearn", "pandas")
"""Packages that transformers would import if it found them. Together they take hundreds of megabytes."""
COUNTED_FAMILIES = ("LlavaOnevisionProcessor",)
"""Processors that cut a picture into tiles only if the prompt has one."""


class ProcessorUnavailableError(Exception):
    """The model's processor cannot be used here. The message is one line for the operator."""


def hide_packages() -> None:
    """Makes later imports of large packages fail, as if they were not installed."""
    for name in HIDDEN_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]


class TokenStandIn:
    """Takes the place of a tokenizer: it has the texts of special tokens, and every token has the id 0."""

    init_kwargs: Mapping[str, Any] = {}

    def __init__(self, tokens: Mapping[str, str]) -> None:
        for name, text in tokens.items():
            setattr(self, name, text)
            setattr(self, f"{name}_id", 0)

    def __call__(self, text: str, **_options: object) -> dict[str, list[int]]:
        """Returns one id, whatever the text."""
        return {"input_ids": [0] if text else []}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Returns 0 for each token."""
        return 0 if isinstance(tokens, str) else [0] * len(tokens)

    def encode(self, _text: str, **_options: object) -> list[int]:
        """Returns the ids of a text that is one token."""
        return [0]

    def add_special_tokens(self, _tokens: object) -> int:
        """Adds nothing."""
        return 0


class LoadedProcessor:
    """The processor of a model."""

    def __init__(self, files: ProcessorFiles) -> None:
        self.processor = _create_processor(files)
        self.image_processor = self.processor.image_processor
        soft = files.tokens.get("image_token")
        image_token = getattr(self.processor, "image_token", None)
        if not isinstance(image_token, str) or not image_token:
            raise ProcessorUnavailableError(f"{type(self.processor).__name__} names no token for pictures")
        is_gemma = getattr(self.processor, "full_image_sequence", None) is not None
        self.facts = ProcessorFacts(
            image_token=image_token,
            soft_token=soft if is_gemma and soft else image_token,
            depends_on_count=type(self.processor).__name__ in COUNTED_FAMILIES,
        )


def _create_processor(files: ProcessorFiles) -> Any:
    options = parse_object(files.processor)
    image_options = options.pop("image_processor", None) or parse_object(files.image_processor)
    names = (options.pop("processor_class", None), image_options.get("processor_class"), files.processor_class)
    processor_class = _find_processor_class(files.model_type, [name for name in names if isinstance(name, str)])
    image_processor = _create_image_processor(files.model_type, image_options)
    accepted = {
        name: value
        for name, value in options.items()
        if name not in {"tokenizer", "video_processor", "feature_extractor", "chat_template", "auto_map"}
    }
    taken = processor_class.__init__.__code__.co_varnames[: processor_class.__init__.__code__.co_argcount]
    arguments = {name: value for name, value in accepted.items() if name in taken}
    for name in ("tokenizer", "video_processor", "feature_extractor", "audio_processor"):
        if name in taken:
            arguments[name] = TokenStandIn(files.tokens) if name == "tokenizer" else None
    confined = type(processor_class.__name__, (processor_class,), {"check_argument_for_proper_class": _accept})
    return confined(image_processor=image_processor, **arguments)


def _accept(_self: object, _name: str, argument: object) -> type:
    """Takes the stand-ins, which are none of transformers' classes."""
    return type(argument)


def _find_processor_class(model_type: str, names: Sequence[str]) -> Any:
    known: dict[str, str] = _import("transformers.models.auto.processing_auto").PROCESSOR_MAPPING_NAMES
    find_folder = _import("transformers.models.auto.configuration_auto").model_type_to_module_name
    by_name = {name: kind for kind, name in known.items() if name}
    mapped = known.get(model_type)
    for name in [*names, *([mapped] if mapped else [])]:
        kind = model_type if name == mapped else by_name.get(name)
        if kind is None:
            continue
        for module in _list_modules(find_folder(kind), name):
            _install_shims(module)
            try:
                return getattr(_import(module), name)
            except (ImportError, AttributeError):
                continue
    raise ProcessorUnavailableError(f"transformers has no processor for {model_type!r} that runs without torch")


def _list_modules(folder: str, class_name: str) -> list[str]:
    """Returns the modules of transformers that may have a processor's class: a family may use that of another."""
    stem = "".join(f"_{char.lower()}" if char.isupper() else char for char in class_name.removesuffix("Processor"))
    families = dict.fromkeys((folder, stem.strip("_"), *_KNOWN_FOLDERS.get(class_name, ())))
    return [f"transformers.models.{family}.processing_{family}" for family in families]


_KNOWN_FOLDERS = {
    "PixtralProcessor": ("pixtral",),
    "Qwen2VLProcessor": ("qwen2_vl",),
    "Qwen2_5_VLProcessor": ("qwen2_5_vl",),
    "Qwen3VLProcessor": ("qwen3_vl",),
    "InternVLProcessor": ("internvl",),
    "SmolVLMProcessor": ("smolvlm",),
    "Glm46VProcessor": ("glm46v",),
}


def _install_shims(module: str) -> None:
    """Puts stand-ins in place of what two families import and use for videos, or only with torch."""
    if module.endswith("processing_smolvlm"):
        sys.modules.setdefault("num2words", _make_module("num2words", num2words=str))
        for utils in ("transformers.utils", "transformers.utils.import_utils"):
            _import(utils).is_num2words_available = lambda: True
    if module.endswith("processing_pixtral"):
        name = "transformers.models.pixtral.image_processing_pixtral"
        pil = _import("transformers.models.pixtral.image_processing_pil_pixtral")
        stand_in = _make_module(name, get_resize_output_image_size=pil.get_resize_output_image_size)
        sys.modules.setdefault(name, stand_in)


def _import(name: str) -> Any:
    """Imports a module of transformers. It is imported late, and has no types for its own members."""
    return importlib.import_module(name)


def _make_module(name: str, **members: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    return module


def _create_image_processor(model_type: str, options: dict[str, Any]) -> Any:
    auto = _import("transformers.models.auto.image_processing_auto")
    stated = options.get("image_processor_type") or options.get("feature_extractor_type")
    if isinstance(stated, str):
        base = stated.replace("FeatureExtractor", "ImageProcessor").removesuffix("Pil").removesuffix("Fast")
        known = auto.IMAGE_PROCESSOR_MAPPING_NAMES.values()
        name = next((backends["pil"] for backends in known if base in backends.values() and "pil" in backends), None)
        names = [name, f"{base}Pil"]
    else:
        names = [auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type, {}).get("pil")]
    for name in filter(None, names):
        found = auto.get_image_processor_class_from_name(name)
        if found is not None and not getattr(found, "is_dummy", False):
            return found.from_dict(options)
    raise ProcessorUnavailableError(f"the image processor of {model_type!r} needs torchvision")


def parse_object(content: bytes) -> dict[str, Any]:
    """Returns the object in a file of JSON; an empty one for a file that is empty or has another value."""
    value = json.loads(content) if content else {}
    return value if isinstance(value, dict) else {}
