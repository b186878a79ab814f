"""Models that see pictures, as folders: templates that make the demands of published ones, and the processors' texts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from antiphon.events.inputs import InputImage
from antiphon.harmony.detection.detect import load_format
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.image_tokens import PromptImage
from tests.harmony.template_models import TEMPLATES_FOLDER

IMAGE_TEMPLATES_FOLDER = TEMPLATES_FOLDER.parent / "image_templates"
_CHATML = ("<|im_start|>", "<|im_end|>")
_QWEN = (*_CHATML, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ImageModel:
    """A model: its dialect, its tokens, its soft token, and the text that its processor writes for n rows."""

    name: str
    dialect: str
    tokens: tuple[str, ...]
    soft: str
    write: Callable[[int], str]
    id_key: str = "image_token_id"
    tokenizer_config: dict[str, Any] = field(default_factory=dict, compare=False)

    def write_folder(self, folder: Path, template: str = "") -> Path:
        """Writes the model's small files. Its tokenizer merges line breaks, as Gemma's and Qwen's do."""
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        merges = [("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("ĊĊ", "ĊĊ"), ("a", "b"), ("Ġ", "a")]
        texts = [*letters, *("".join(pair) for pair in merges)]
        tokenizer = Tokenizer(
            models.BPE(vocab={text: index for index, text in enumerate(dict.fromkeys(texts))}, merges=merges)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<s>", "</s>", *self.tokens])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"model_type": self.name, self.id_key: tokenizer.token_to_id(self.soft)}
        (folder / "config.json").write_text(json.dumps(config))
        names = {"bos_token": "<s>", "eos_token": "</s>", **self.tokenizer_config}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
        (folder / "chat_template.jinja").write_text(template or self.read_template())
        return folder

    def read_template(self) -> str:
        """Returns the text of the model's template."""
        folders = (IMAGE_TEMPLATES_FOLDER, TEMPLATES_FOLDER)
        files = (folder / f"{self.name}.jinja" for folder in folders)
        return next(file for file in files if file.is_file()).read_text(encoding="utf-8")


def _write_rows(rows: int) -> str:
    """Writes two lines of soft tokens, or one if the number is odd, each with an end, as Pixtral does."""
    lines = [rows] if rows % 2 else [rows // 2, rows // 2]
    return "[IMG_BREAK]".join("[IMG]" * line for line in lines) + "[IMG_END]"


def _write_tiles(rows: int) -> str:
    """Writes a tile for all rows but one, and the global tile, as Idefics3 does."""
    around = "<fake_token_around_image>"
    tile = f"{around}<row_1_col_1>{'<image>' * (rows - 1)}\n\n" if rows > 1 else ""
    return f"{tile}{around}<global-img><image>{around}"


IMAGE_MODELS = (
    ImageModel("qwen2-vl", "hermes", _QWEN, "<|image_pad|>", lambda rows: "<|image_pad|>" * rows),
    ImageModel("qwen3-vl", "hermes", _QWEN, "<|image_pad|>", lambda rows: "<|image_pad|>" * rows),
    ImageModel("numbered", "plain", _QWEN, "<|image_pad|>", lambda rows: "<|image_pad|>" * rows),
    ImageModel(
        "glm-4.5v",
        "glm",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
         "<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
        "<|image|>",
        lambda rows: "<|image|>" * rows,
    ),
    ImageModel(
        "gemma-3",
        "plain",
        ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        "<image_soft_token>",
        lambda rows: f"\n\n<start_of_image>{'<image_soft_token>' * rows}<end_of_image>\n\n",
        "image_token_index",
        {"extra_special_tokens": {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>"}},
    ),
    ImageModel(
        "gemma-4",
        "gemma4",
        ("<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|image>", "<|image|>",
         "<image|>"),
        "<|image|>",
        lambda rows: f"<|image>{'<|image|>' * rows}<image|>",
        tokenizer_config={"image_token": {"content": "<|image|>"}, "boi_token": "<|image>"},
    ),
    ImageModel(
        "mistral-small-3.1",
        "mistral",
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
         "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        "[IMG]",
        _write_rows,
        "image_token_index",
    ),
    ImageModel(
        "smolvlm",
        "plain",
        ("<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>",
         "<row_1_col_1>"),
        "<image>",
        _write_tiles,
    ),
    ImageModel(
        "internvl",
        "plain",
        (*_CHATML, "<IMG_CONTEXT>", "<img>", "</img>"),
        "<IMG_CONTEXT>",
        lambda rows: f"<img>{'<IMG_CONTEXT>' * rows}</img>",
    ),
    ImageModel(
        "llava-1.5", "plain", ("<image>",), "<image>", lambda rows: "<image>" * rows, "image_token_index"
    ),
)  # fmt: skip


@cache
def load_image_model(model: ImageModel, template: str = "") -> ModelFormat:
    """Returns the format of a model, or of one that has its vocabulary and another template."""
    with TemporaryDirectory() as folder:
        return load_format(model.write_folder(Path(folder), template), model.dialect).format


def picture(number: int) -> InputImage:
    """Returns a part with the picture that has `number` rows."""
    return InputImage(image_url=f"blob:{number}")


def list_pictures(model: ImageModel, count: int = 9) -> dict[tuple[str, str | None], PromptImage]:
    """Returns the pictures with 1 to `count` rows by the keys of their parts."""
    return {
        (f"blob:{rows}", None): PromptImage(key=bytes([rows]) * 32, replacement=model.write(rows), rows=rows)
        for rows in range(1, count + 1)
    }
