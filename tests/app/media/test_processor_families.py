"""The processors of all families, run without torch: tokens, arrays and budgets. One process loads them all."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct

from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.prepared_image import PreparedImage
from tests.app.media.pictures import QWEN3_VL_PROCESSOR, make_png, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = MediaLimits(image_tokens=512, max_image_tokens=4096)
SMALL, LARGE = make_png(300, 200), make_png(1600, 1200)


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def preparer() -> AsyncIterator[MediaPreparer]:
    """The preparer that all tests share."""
    preparer = MediaPreparer(LIMITS)
    yield preparer
    await preparer.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: write_model(root / name, name, family.image_processor, family.processor, family.tokens)
        for name, family in FAMILIES.items()
    }


async def prepare(
    preparer: MediaPreparer, folder: Path, data: bytes, detail: str | None = None, num_images: int = 1
) -> PreparedImage:
    digest = sha256(data).digest()
    return await preparer.prepare("a", digest, data, folder=folder, detail=detail, num_images=num_images)


@pytest.mark.parametrize("name", FAMILIES)
async def test_family(preparer: MediaPreparer, folders: dict[str, Path], name: str) -> None:
    family, folder = FAMILIES[name], folders[name]
    facts = await preparer.describe(folder)
    assert (facts.error, facts.soft_token) == ("", family.soft_token)
    small = await prepare(preparer, folder, SMALL)
    large = await prepare(preparer, folder, LARGE)
    original = await prepare(preparer, folder, LARGE, "original")
    assert (small.rows, large.rows, original.rows) == family.rows
    for image in (small, large, original):
        assert image.replacement.count(family.soft_token) == image.rows
        assert image.replacement.startswith(family.begins) and image.replacement.endswith(family.ends)
        assert {array.name for array in image.arrays} <= set(family.arrays)
        assert len(image.grid) == (3 if family.arrays == PATCHES else 0)
    assert {array.name for array in original.arrays} == set(family.arrays)
    assert len({small.key, large.key, original.key}) == 3 or large.rows == original.rows


@pytest.mark.parametrize("name", FAMILIES)
async def test_smallest_pictures(preparer: MediaPreparer, folders: dict[str, Path], name: str) -> None:
    """A picture of one pixel has ended servers of others."""
    for side in (1, 3):
        assert (await prepare(preparer, folders[name], make_png(side, side))).rows > 0


async def test_tiles_depend_on_the_number_of_pictures(preparer: MediaPreparer, folders: dict[str, Path]) -> None:
    one, two, three = [await prepare(preparer, folders["llava_onevision"], SMALL, num_images=n) for n in (1, 2, 3)]
    assert (one.rows, two.rows) == (1261, 730) and two == three
    assert {array.name: array.shape for array in two.arrays}["pixel_values"][:2] == (1, 1)
    assert one.key != two.key


async def test_detail_changes_the_size(preparer: MediaPreparer, folders: dict[str, Path]) -> None:
    sizes = {
        detail: (await prepare(preparer, folders["qwen3_vl"], LARGE, detail)).rows
        for detail in ("low", "auto", "high", "original")
    }
    assert sizes == {"low": 192, "auto": 494, "high": 999, "original": 1900}


async def test_family_that_needs_torchvision_is_refused(preparer: MediaPreparer, tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama4", {"image_processor_type": "Llama4ImageProcessorFast"})
    assert (await preparer.describe(folder)).error == "the image processor of 'llama4' needs torchvision"
    with pytest.raises(MediaFault) as caught:
        await prepare(preparer, folder, SMALL)
    assert caught.value.code == "unavailable"
    assert (await preparer.describe(tmp_path / "missing")).error


async def test_png_for_remote_engines(preparer: MediaPreparer, folders: dict[str, Path]) -> None:
    digest = sha256(LARGE).digest()
    encoded = await preparer.encode_png("a", digest, LARGE, folder=folders["qwen3_vl"], detail="low")
    assert encoded.tokens == 192 and max(encoded.width, encoded.height) <= 512
    assert await preparer.encode_png("a", digest, LARGE, folder=folders["qwen3_vl"], detail="low") is encoded
    plain = await preparer.encode_png("a", digest, LARGE, folder=None, detail="auto")
    assert plain.tokens == 0 and 0.98 * 512 * 1024 < plain.width * plain.height <= 512 * 1024
