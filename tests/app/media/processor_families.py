"""The families of image processors."""

from typing import Any

from msgspec import Struct

from tests.app.media.pictures import QWEN3_VL_PROCESSOR


class Family(Struct, frozen=True, kw_only=True):
    """A family: files of a model, and what its processor makes of two pictures."""

    image_processor: dict[str, Any]
    processor: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None
    soft_token: str
    arrays: tuple[str, ...]
    rows: tuple[int, int, int]
    """Of the small picture, of the large one, and of the large one with `detail` "original"."""
    begins: str = ""
    ends: str = ""


PATCHES = ("pixel_values", "image_grid_thw")
QWEN2_VL = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056}
FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(image_processor=QWEN2_VL, soft_token="<|image_pad|>", arrays=PATCHES, rows=(77, 494, 2451)),
    "qwen2_5_vl": Family(image_processor=QWEN2_VL, soft_token="<|image_pad|>", arrays=PATCHES, rows=(77, 494, 2451)),
    "qwen3_vl": Family(
        image_processor=QWEN3_VL_PROCESSOR, soft_token="<|image_pad|>", arrays=PATCHES, rows=(70, 494, 1900)
    ),
    "qwen3_vl_moe": Family(
        image_processor=QWEN3_VL_PROCESSOR, soft_token="<|image_pad|>", arrays=PATCHES, rows=(70, 494, 1900)
    ),
    "qwen3_5": Family(
        image_processor=QWEN3_VL_PROCESSOR, soft_token="<|image_pad|>", arrays=PATCHES, rows=(70, 494, 1900)
    ),
    "glm4v": Family(
        image_processor={"image_processor_type": "Glm4vImageProcessor"},
        soft_token="<|image|>",
        arrays=PATCHES,
        rows=(77, 494, 2451),
    ),
    "glm4v_moe": Family(
        image_processor={"image_processor_type": "Glm4vImageProcessor"},
        soft_token="<|image|>",
        arrays=PATCHES,
        rows=(77, 494, 2451),
    ),
    "gemma3": Family(
        image_processor={"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}},
        processor={"processor_class": "Gemma3Processor", "image_seq_length": 256},
        tokens={"boi_token": "<boi>", "eoi_token": "<eoi>", "extra_special_tokens": {"image_token": "<soft>"}},
        soft_token="<soft>",
        arrays=("pixel_values",),
        rows=(256, 256, 256),
        begins="\n\n<boi><soft>",
        ends="<soft><eoi>\n\n",
    ),
    "gemma4": Family(
        image_processor={"image_processor_type": "Gemma4ImageProcessor"},
        processor={"processor_class": "Gemma4Processor"},
        tokens={"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<soft>"},
        soft_token="<soft>",
        arrays=("pixel_values", "image_position_ids"),
        rows=(260, 266, 266),
        begins="<boi><soft>",
        ends="<soft><eoi>",
    ),
    "mistral3": Family(
        image_processor={
            "image_processor_type": "PixtralImageProcessorFast",
            "patch_size": 14,
            "size": {"longest_edge": 1540},
        },
        processor={"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
        soft_token="[IMG]",
        arrays=("pixel_values", "image_sizes"),
        rows=(88, 475, 2310),
        ends="[IMG][IMG_END]",
    ),
    "pixtral": Family(
        image_processor={
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": {"height": 16, "width": 16},
            "size": {"longest_edge": 1024},
        },
        processor={"processor_class": "PixtralProcessor", "patch_size": 16},
        soft_token="[IMG]",
        arrays=("pixel_values", "image_sizes"),
        rows=(247, 475, 3072),
        ends="[IMG][IMG_END]",
    ),
    "idefics3": Family(
        image_processor={
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 1456},
            "max_image_size": {"longest_edge": 364},
        },
        processor={"processor_class": "Idefics3Processor", "image_seq_len": 169},
        soft_token="<image>",
        arrays=("pixel_values", "pixel_attention_mask"),
        rows=(169, 169, 2197),
        begins="<fake_token_around_image>",
    ),
    "smolvlm": Family(
        image_processor={
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 2048},
            "max_image_size": {"longest_edge": 512},
        },
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 64},
        soft_token="<image>",
        arrays=("pixel_values", "pixel_attention_mask"),
        rows=(448, 320, 832),
        begins="<fake_token_around_image>",
    ),
    "internvl": Family(
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 12,
            "size": {"height": 448, "width": 448},
        },
        processor={"processor_class": "InternVLProcessor", "image_seq_length": 256},
        tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<ctx>",
            "video_token": "<video>",
        },
        soft_token="<ctx>",
        arrays=("pixel_values",),
        rows=(256, 256, 3328),
        begins="<img><ctx>",
        ends="<ctx></img>",
    ),
    "llava": Family(
        image_processor={
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336},
        },
        processor={
            "processor_class": "LlavaProcessor",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        soft_token="<image>",
        arrays=("pixel_values",),
        rows=(576, 576, 576),
    ),
    "llava_onevision": Family(
        image_processor={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 384, "width": 384},
        },
        processor={
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": 729,
            "vision_feature_select_strategy": "full",
        },
        soft_token="<image>",
        arrays=("pixel_values", "image_sizes", "batch_num_images"),
        rows=(1261, 1317, 2929),
    ),
    "deepseek_ocr2": Family(
        image_processor={"image_processor_type": "DeepseekOcr2ImageProcessor"},
        processor={"processor_class": "DeepseekOcr2Processor"},
        soft_token="<image>",
        arrays=("pixel_values", "num_local_patches", "pixel_values_local"),
        rows=(257, 401, 1121),
    ),
}
