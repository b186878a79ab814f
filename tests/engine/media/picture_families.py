"""Tiny random models that take pictures, prompts with random pictures, and what transformers' `generate` makes of them."""

import copy
import functools
import hashlib
import select
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Fault, Job, Sampling
from antiphon.engine.scheduler.core import Core
from tests.engine.tiny_models import BASE_CONFIG, DEVICE, DEVICE_OPTIONS, EOS_ID
from tests.engine.vision_models import MOE

SOFT_ID, VIDEO_ID, AUDIO_ID, START_ID, END_ID, BREAK_ID = 90, 91, 92, 93, 94, 95
NUM_TOKENS = 20
MAX_ENCODING_S = 30
PATCH = 8


class Picture(NamedTuple):
    """A prepared picture: the arguments of `get_image_features`, and the tokens that stand for it."""

    arrays: dict[str, Tensor]
    tokens: tuple[int, ...]
    grid: tuple[int, ...] = ()

    @property
    def key(self) -> bytes:
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(name.encode() + array.numpy().tobytes())
        return digest.digest()


class PictureFamily(NamedTuple):
    """A model with pictures. `draw` makes a picture from a generator and a size in units of the smallest one."""

    model_type: str
    text: dict[str, Any]
    vision: dict[str, Any]
    draw: Callable[[torch.Generator, int], Picture]
    config: dict[str, Any]
    token_types: str = ""
    """Name of the argument with 1 at soft tokens, if the model reads it."""


def _mrope(*sections: int, **parameters: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    return {"rope_parameters": rope | parameters, "head_dim": 32}


def _draw_grid(random: torch.Generator, size: int) -> Picture:
    """A picture of 4 by 4·size patches, 2 by 2·size soft tokens."""
    height, width = 4, 4 * size
    pixels = torch.randn((height * width, 3 * 2 * PATCH * PATCH), generator=random)
    grid = (1, height, width)
    tokens = (START_ID, *[SOFT_ID] * (height * width // 4), END_ID)
    return Picture({"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}, tokens, grid)


def _draw_square(random: torch.Generator, side: int, rows: int, *, wrap: bool = False) -> Picture:
    pixels = torch.randn((1, 3, side, side), generator=random)
    tokens = tuple([SOFT_ID] * rows)
    return Picture({"pixel_values": pixels}, (START_ID, *tokens, END_ID) if wrap else tokens)


def _draw_pixtral(random: torch.Generator, size: int) -> Picture:
    """Rows of 2·size soft tokens, one for each patch, and a break between them."""
    height, width = 2 * PATCH, 2 * PATCH * size
    pixels = torch.randn((1, 3, height, width), generator=random)
    row = [SOFT_ID] * (2 * size)
    return Picture(
        {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]])}, (*row, BREAK_ID, *row, END_ID)
    )


def _draw_tiles(random: torch.Generator, size: int, side: int, rows: int) -> Picture:
    pixels = torch.randn((size, 3, side, side), generator=random)
    return Picture({"pixel_values": pixels}, (START_ID, *[SOFT_ID] * (rows * size), END_ID))


def _draw_mistral3(random: torch.Generator, size: int) -> Picture:
    """Two rows of 2·size soft tokens, with a break between them: the soft tokens are no run."""
    height, width = 4 * PATCH, 4 * PATCH * size
    pixels = torch.randn((1, 3, height, width), generator=random)
    row = [SOFT_ID] * (2 * size)
    return Picture(
        {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]])}, (*row, BREAK_ID, *row, END_ID)
    )


def _draw_onevision(random: torch.Generator, size: int) -> Picture:
    """A picture of one tile: the base tile, one more, and a new line after each of its rows."""
    pixels = torch.randn((1, 2, 3, 32, 32), generator=random)
    arrays = {"pixel_values": pixels, "image_sizes": torch.tensor([[32, 32]]), "batch_num_images": torch.tensor([1])}
    return Picture(arrays, (START_ID, *[SOFT_ID] * (16 + 16 + 4), END_ID))


def _draw_idefics(random: torch.Generator, size: int) -> Picture:
    """Tiles with tokens between them."""
    pixels = torch.randn((1, size, 3, 32, 32), generator=random)
    tokens = [token for _ in range(size) for token in (BREAK_ID, *[SOFT_ID] * 4)]
    mask = torch.ones((1, size, 32, 32), dtype=torch.bool)
    return Picture({"pixel_values": pixels, "pixel_attention_mask": mask}, (START_ID, *tokens, END_ID))


def _draw_ocr(random: torch.Generator, size: int) -> Picture:
    """A page of 768 pixels: 144 soft tokens and one that ends it."""
    pixels = torch.randn((1, 3, 768, 768), generator=random)
    return Picture({"pixel_values": pixels}, (START_ID, *[SOFT_ID] * 145, END_ID))


def _draw_gemma4(random: torch.Generator, size: int) -> Picture:
    height, width = 4, 4 * size
    pixels = torch.rand((1, height * width, 3 * PATCH * PATCH), generator=random)
    places = torch.tensor([[x, y] for y in range(height) for x in range(width)])[None]
    tokens = (START_ID, *[SOFT_ID] * (height * width // 4), END_ID)
    return Picture({"pixel_values": pixels, "image_position_ids": places}, tokens)


_WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""A text part whose heads have 32 numbers, as the kernels need, where the configuration does not name their size."""
_QWEN_VISION: dict[str, Any] = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 32,
    "embed_dim": 32,
    "num_position_embeddings": 64,
}
_CLIP_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": PATCH,
    "projection_dim": 32,
}
_GEMMA4: dict[str, Any] = {
    "head_dim": 32,
    "global_head_dim": 32,
    "sliding_window": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 96,
    "use_double_wide_mlp": False,
}
_GEMMA4_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "patch_size": PATCH,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}
_GLM_VISION = _QWEN_VISION | {"image_size": 64}
_HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

FAMILIES: dict[str, PictureFamily] = {
    "qwen2_vl": PictureFamily(
        *("qwen2_vl", _mrope(4, 6, 6) | _WIDE, _QWEN_VISION | {"hidden_size": 64, "mlp_ratio": 2}, _draw_grid),
        *({}, "mm_token_type_ids"),
    ),
    "qwen2_5_vl": PictureFamily(
        "qwen2_5_vl",
        _mrope(4, 6, 6) | _WIDE,
        _QWEN_VISION | {"window_size": 32, "fullatt_block_indexes": [1], "out_hidden_size": 64},
        _draw_grid,
        {},
        "mm_token_type_ids",
    ),
    "qwen3_vl": PictureFamily(
        *("qwen3_vl", _mrope(4, 6, 6), _QWEN_VISION | {"deepstack_visual_indexes": [0, 1]}, _draw_grid),
        *({}, "mm_token_type_ids"),
    ),
    "qwen3_vl_moe": PictureFamily(
        *("qwen3_vl_moe", _mrope(4, 6, 6) | MOE, _QWEN_VISION | {"deepstack_visual_indexes": [0]}, _draw_grid),
        *({}, "mm_token_type_ids"),
    ),
    "qwen3_5": PictureFamily(
        *("qwen3_5", _mrope(2, 3, 3, partial_rotary_factor=0.5) | _HYBRID, _QWEN_VISION, _draw_grid),
        *({}, "mm_token_type_ids"),
    ),
    "qwen3_5_moe": PictureFamily(
        "qwen3_5_moe",
        _mrope(2, 3, 3, partial_rotary_factor=0.5) | _HYBRID | MOE | {"shared_expert_intermediate_size": 16},
        _QWEN_VISION,
        _draw_grid,
        {},
        "mm_token_type_ids",
    ),
    "glm4v": PictureFamily(
        *(
            "glm4v",
            _mrope(2, 3, 3, partial_rotary_factor=0.5) | _WIDE,
            _GLM_VISION | {"out_hidden_size": 64},
            _draw_grid,
        ),
        *({"image_start_token_id": START_ID, "image_end_token_id": END_ID}, "mm_token_type_ids"),
    ),
    "glm4v_moe": PictureFamily(
        "glm4v_moe",
        _mrope(2, 3, 3, partial_rotary_factor=0.5)
        | MOE
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        _GLM_VISION,
        _draw_grid,
        {"image_start_token_id": START_ID, "image_end_token_id": END_ID},
        "mm_token_type_ids",
    ),
    "gemma3": PictureFamily(
        "gemma3",
        {"head_dim": 32, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"num_hidden_layers": 4, "query_pre_attn_scalar": 32},
        {"model_type": "siglip_vision_model", "vision_use_head": False} | _CLIP_VISION,
        lambda random, _: _draw_square(random, 32, 4, wrap=True),
        {
            "mm_tokens_per_image": 4,
            "image_token_index": SOFT_ID,
            "boi_token_index": START_ID,
            "eoi_token_index": END_ID,
        },
        "token_type_ids",
    ),
    "gemma4": PictureFamily("gemma4", _GEMMA4, _GEMMA4_VISION, _draw_gemma4, {}, "mm_token_type_ids"),
    "gemma4_two_way": PictureFamily(
        *("gemma4", _GEMMA4 | {"use_bidirectional_attention": "vision"}, _GEMMA4_VISION, _draw_gemma4),
        *({}, "mm_token_type_ids"),
    ),
    "gemma4_per_layer": PictureFamily(
        *(
            "gemma4",
            _GEMMA4 | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2},
            _GEMMA4_VISION,
            _draw_gemma4,
        ),
        *({}, "mm_token_type_ids"),
    ),
    "mistral3": PictureFamily(
        "mistral3",
        {"model_type": "mistral", "head_dim": 32},
        {"model_type": "pixtral"} | _CLIP_VISION,
        _draw_mistral3,
        {},
    ),
    "ministral3": PictureFamily(
        "mistral3",
        {"model_type": "ministral3", "head_dim": 32},
        {"model_type": "pixtral"} | _CLIP_VISION,
        _draw_mistral3,
        {},
    ),
    "pixtral": PictureFamily(
        "llava",
        {"model_type": "mistral", "head_dim": 32},
        {"model_type": "pixtral"} | _CLIP_VISION,
        _draw_pixtral,
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "internvl": PictureFamily(
        "internvl",
        {"model_type": "qwen2", "head_dim": 32},
        _CLIP_VISION | {"image_size": [32, 32], "patch_size": [PATCH, PATCH]},
        lambda random, size: _draw_tiles(random, size, 32, 4),
        {},
    ),
    "llava": PictureFamily(
        "llava",
        {"model_type": "llama", "head_dim": 32},
        {"model_type": "clip_vision_model"} | _CLIP_VISION,
        lambda random, _: _draw_square(random, 32, 16),
        {"image_seq_length": 16, "vision_feature_layer": -2},
    ),
    "llava_onevision": PictureFamily(
        "llava_onevision",
        {"model_type": "qwen2", "head_dim": 32},
        {"model_type": "siglip_vision_model", "vision_use_head": False} | _CLIP_VISION,
        _draw_onevision,
        {"image_grid_pinpoints": [[32, 32]]},
    ),
    "deepseek_ocr2": PictureFamily(
        "deepseek_ocr2",
        {
            "head_dim": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "mlp_layer_types": ["dense", "sparse"],
        },
        {
            "sam_config": {
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 768,
                "patch_size": 16,
                "window_size": 14,
                "global_attn_indexes": [1],
                "mlp_ratio": 2.0,
                "downsample_channels": [24, 32],
            },
            "encoder_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "vocab_size": 96,
            },
        },
        _draw_ocr,
        {},
    ),
    "idefics3": PictureFamily(
        "idefics3", {"model_type": "llama", "head_dim": 32}, _CLIP_VISION, _draw_idefics, {"scale_factor": 2}
    ),
    "smolvlm": PictureFamily(
        "smolvlm", {"model_type": "llama", "head_dim": 32}, _CLIP_VISION, _draw_idefics, {"scale_factor": 2}
    ),
}


@functools.cache
def tiny_picture_model(name: str) -> PreTrainedModel:
    """Returns the family's model in fp32, as transformers builds it. All tests share it and must not modify it."""
    family = FAMILIES[name]
    torch.manual_seed(7)
    text = BASE_CONFIG | {"tie_word_embeddings": False, "max_position_embeddings": 512} | family.text
    ids = {each: BASE_CONFIG[each] for each in ("bos_token_id", "eos_token_id", "pad_token_id")}
    special = {"image_token_id": SOFT_ID, "video_token_id": VIDEO_ID, "vision_start_token_id": START_ID}
    special |= {"vision_end_token_id": END_ID, "audio_token_id": AUDIO_ID}
    config = CONFIG_MAPPING[family.model_type](
        text_config=text, vision_config=family.vision, tie_word_embeddings=False, **ids | special | family.config
    )
    model: Any = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    for module in model.modules():  # features that matter: their usual size is a hundredth of an embedding's
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 1 and parameter.std() < 0.1:
                parameter.data = 0.1 * torch.randn(parameter.shape)
    return cast("PreTrainedModel", model.eval().to(DEVICE))


def build_picture_core(name: str, **options: Any) -> Core:
    """Returns a core on a copy of the family's model."""
    options = {"pack_cache": False} | DEVICE_OPTIONS | options
    return build_core_from_model(
        copy.deepcopy(tiny_picture_model(name)), options=EngineOptions(**options), optimize=True
    )


class Prompt(NamedTuple):
    """A prompt with pictures, in the order of their places."""

    tokens: list[int]
    pictures: list[Picture]
    spans: tuple[MediaSpan, ...]


def draw_picture(name: str, seed: int, size: int = 1) -> Picture:
    """Returns a random picture for a family."""
    return FAMILIES[name].draw(torch.Generator().manual_seed(seed), size)


def make_prompt(*parts: int | Picture, seed: int = 3) -> Prompt:
    """Returns a prompt of pictures, and of text tokens: each number is that of a run."""
    random = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    pictures, spans = [], []
    for part in parts:
        if isinstance(part, int):
            tokens += torch.randint(5, 85, (part,), generator=random).tolist()
            continue
        soft = [index for index, token in enumerate(part.tokens) if token == SOFT_ID]
        length = soft[-1] - soft[0] + 1
        spans.append(
            MediaSpan(key=part.key, offset=len(tokens) + soft[0], length=length, rows=len(soft), grid=part.grid)
        )
        pictures.append(part)
        tokens += part.tokens
    return Prompt(tokens, pictures, tuple(spans))


def make_prompts(name: str) -> list[Prompt]:
    """Returns eight prompts of mixed length, with 0 to 3 pictures."""
    pictures = [draw_picture(name, seed, 1 + seed % 2) for seed in range(4)]
    return [
        make_prompt(6, pictures[0], 5),
        make_prompt(21, seed=4),
        make_prompt(pictures[1], 3, seed=5),
        make_prompt(17, pictures[2], seed=6),
        make_prompt(2, pictures[0], 1, pictures[3], 4, seed=7),
        make_prompt(pictures[1], pictures[1], 1, seed=8),
        make_prompt(40, pictures[2], 9, seed=9),
        make_prompt(pictures[0], 7, pictures[1], 1, pictures[3], 12, seed=10),
    ]


def make_picture_job(prompt: Prompt, name: str = "j", **options: Any) -> Job:
    """Returns a greedy job of `NUM_TOKENS` tokens."""
    fields = {key: options.pop(key) for key in list(options) if key in Sampling.__struct_fields__}
    sampling = Sampling(**{"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True} | fields)
    return Job(id=name, tokens=tuple(prompt.tokens), sampling=sampling, media=prompt.spans, **options)


def run_picture_jobs(core: Core, jobs: Sequence[tuple[Job, Prompt]]) -> dict[str, list[Chunk]]:
    """Runs the jobs together, and answers the core's requests for pictures. Returns the chunks of each job."""
    prompts = {job.id: prompt for job, prompt in jobs}
    for job, _ in jobs:
        core.add(job)
    chunks: dict[str, list[Chunk]] = {}
    while core.has_work:
        for name, chunk in core.step():
            chunks.setdefault(name, []).append(chunk)
        if not answer_requests(core, prompts) and core.waits_for_pictures:
            assert core.pictures is not None
            ready = select.select([core.pictures.wake_descriptor], [], [], MAX_ENCODING_S)
            assert ready[0], "jobs wait for pictures that do not come"
    return chunks


def answer_requests(core: Core, prompts: dict[str, Prompt]) -> bool:
    """Gives the core the pictures that it has asked for. Tells whether it has asked for one."""
    assert core.pictures is not None
    requests = core.pictures.take_requests()
    for job_id, key in requests:
        picture = next(picture for picture in prompts[job_id].pictures if picture.key == key)
        core.pictures.provide_tensors(job_id, key, picture.arrays)
    return bool(requests)


def join_output(chunks: list[Chunk]) -> list[int]:
    """Returns the tokens of a job that ended without a fault."""
    faults: list[Fault] = [chunk.fault for chunk in chunks if chunk.fault is not None]
    assert not faults, faults
    return [token for chunk in chunks for token in chunk.tokens]


@torch.inference_mode()
def generate_reference(name: str, prompt: Prompt, model: PreTrainedModel | None = None) -> list[int]:
    """Returns the greedy output of transformers' `generate` for a prompt."""
    family, model = FAMILIES[name], model or tiny_picture_model(name)
    ids = torch.tensor([prompt.tokens], device=DEVICE)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family.token_types:
        inputs[family.token_types] = (ids == SOFT_ID).long()
    for key in prompt.pictures[0].arrays if prompt.pictures else ():
        arrays = [picture.arrays[key] for picture in prompt.pictures]
        inputs[key] = _join_arrays(arrays, key, family).to(DEVICE)
    cast("Any", model.base_model).rope_deltas = None
    output: Any = model.generate(  # type: ignore[operator]
        **inputs,
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=-1,
        suppress_tokens=[SOFT_ID, VIDEO_ID, AUDIO_ID],
    )
    assert EOS_ID >= 0
    return cast("list[int]", output[0, len(prompt.tokens) :].tolist())


def _join_arrays(arrays: list[Tensor], name: str, family: PictureFamily) -> Tensor:
    """Returns the array of several pictures, as processors make it: in one batch, padded to the largest."""
    if family.draw is _draw_idefics:
        arrays = [array[0] for array in arrays]
    elif family.draw is _draw_grid:
        return torch.cat(arrays)
    shape = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    filler = -1 if name == "image_position_ids" else 0
    padded = [
        functional.pad(
            array,
            [end for size, length in zip(shape[::-1], array.shape[:0:-1], strict=True) for end in (0, size - length)],
            value=filler,
        )
        for array in arrays
    ]
    joined = torch.cat(padded)
    return joined[None] if family.draw is _draw_idefics else joined
