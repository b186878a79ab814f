"""The processors of all families, run without torch: tokens, arrays and budgets. One process loads them all."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.prepared_image import PreparedImage
from tests.app.media.pictures import make_png, write_model
from tests.app.media.processor_families import FAMILIES, PATCHES

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = MediaLimits(image_tokens=512, max_image_tokens=4096)
SMALL, LARGE = make_png(300, 200), make_png(1600, 1200)


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
