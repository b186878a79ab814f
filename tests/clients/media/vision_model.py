"""A model that sees, for tests of the front end: files of the qwen3_vl family on the spot, and a scripted engine."""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony.detection.detect import load_format
from tests.serving import RunningServer, serve

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<tool_call>", "</tool_call>",
)  # fmt: skip
TEMPLATE = Path(__file__).parents[2] / "harmony/image_templates/qwen3-vl.jinja"
SAY_IMAGES: dict[str, Any] = {"name": "images", "output": [{"media": True}]}
"""Reply that tells which images the engine was given."""


def write_vision_model(folder: Path) -> Path:
    """Writes the tokenizer, the template and the processor of a model. Returns the folder."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL_TOKENS}
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "qwen3_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 16,
        "merge_size": 2,
        "size": {"shortest_edge": 1024, "longest_edge": 16_777_216},
    }
    tokenizer_config = {"image_token": "<|image_pad|>", "eos_token": "<|im_end|>"}
    files = {
        "config.json": config, "preprocessor_config.json": processor, "tokenizer_config.json": tokenizer_config,
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def vision_registry(
    folder: Path, replies: Sequence[dict[str, Any]] = (SAY_IMAGES,), name: str = "vision"
) -> ModelRegistry:
    """Returns a registry of the model in a folder, whose engine replays a script."""
    model_format = load_format(folder).format
    soft_id = json.loads((folder / "config.json").read_text(encoding="utf-8"))["image_token_id"]
    info = EngineInfo(
        max_model_len=131_072,
        vocab_size=1_024,
        device="cpu",
        eos_ids=model_format.stop_ids[:1],
        image_form="expanded",
        soft_ids=(soft_id,),
        suppressed_ids=(soft_id,),
    )
    engine = ScriptedEngine(
        parse_script({"reply": list(replies)}), encode=model_format.encode, decode=model_format.decode, info=info
    )
    model = ServedModel(names=(name,), engine=engine, format=model_format, created=1_700_000_000, folder=folder)
    return ModelRegistry([model])


def serve_vision(
    folder: Path, replies: Sequence[dict[str, Any]] = (SAY_IMAGES,), **settings: Any
) -> AbstractContextManager[RunningServer]:
    """Serves the model in a folder, whose engine replays a script."""
    return serve(vision_registry(folder, replies), **settings)


def make_png(width: int, height: int, color: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """Returns a PNG of one color."""
    rows = (b"\0" + bytes(color) * width) * height
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    body = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """Returns a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
