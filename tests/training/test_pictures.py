"""The picture generator, and the vision tower on batches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.engine.embedded import MODEL_DIR
from training.pictures import drawing
from training.pictures.convert import read_tower
from training.pictures.drawing import COLOURS, SHAPES, Scene, draw_picture, draw_scene
from training.pictures.fit_readout import fit_readout, load_tower
from training.pictures.picture_batches import GRIDS, UNKNOWN, draw_batch, label_scenes
from training.pictures.soft_words import SoftWords, index_soft_tokens, list_slots
from training.pictures.strokes import DIGIT_STROKES
from training.pictures.tower import MERGE, PATCH, build_tower, cut_patches, encode_pictures
from training.pictures.train_tower import ProbedTower, TowerPlan, train_tower

FIGURES = [Scene(shape, "red", "blue") for shape in SHAPES[:3]] + [Scene("digit", "red", "blue", n) for n in range(10)]


def share_of(picture: drawing.Picture, name: str) -> float:
    """Returns the share of pixels that are nearer to a colour than to the others."""
    distances = [abs(picture.astype(int) - colour).sum(-1) for colour in COLOURS.values()]
    return float((np.argmin(distances, axis=0) == list(COLOURS).index(name)).mean())


@pytest.mark.parametrize("scene", FIGURES, ids=lambda scene: f"{scene.shape}-{scene.digit}")
def test_a_figure_has_its_colour_on_its_ground(scene: Scene) -> None:
    for seed in range(8):
        picture = draw_picture(np.random.default_rng(seed), scene)
        assert picture.shape == (64, 64, 3) and picture.dtype == np.uint8
        assert share_of(picture, "red") > 0.015 and share_of(picture, "blue") > 0.3
        edge = np.concatenate([picture[0], picture[-1]])
        assert share_of(edge[None], "blue") > 0.6, "a figure hardly touches the picture's edge"


def test_pictures_depend_only_on_the_seed_and_differ_among_seeds() -> None:
    first, same, other = (draw_picture(np.random.default_rng(seed), FIGURES[0]) for seed in (1, 1, 2))
    assert np.array_equal(first, same) and not np.array_equal(first, other)


@pytest.mark.parametrize("size", [(48, 96), (300, 400), (33, 32)])
def test_pictures_have_any_size(size: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    for _ in range(40):
        assert draw_picture(random, draw_scene(random), *size).shape == (*size, 3)


def test_half_of_the_scenes_are_digits_and_colours_differ() -> None:
    random = np.random.default_rng(5)
    scenes = [draw_scene(random) for _ in range(2000)]
    counts = {shape: sum(scene.shape == shape for scene in scenes) for shape in SHAPES}
    assert 0.46 < counts["digit"] / 2000 < 0.54 and all(count > 100 for count in counts.values())
    assert all(scene.colour != scene.ground and (scene.digit is None) == (scene.shape != "digit") for scene in scenes)


def test_labels_of_an_unknown_picture_are_left_out() -> None:
    labels = label_scenes([Scene("other", "red", "blue"), Scene("digit", "green", "white", 4)])
    assert labels["colour"].tolist() == [UNKNOWN, list(COLOURS).index("green")]
    assert labels["shape"].tolist() == [SHAPES.index("other"), SHAPES.index("digit")]
    assert labels["digit"].tolist() == [UNKNOWN, 4]


def test_strokes_stay_in_their_box() -> None:
    for strokes in DIGIT_STROKES:
        points = np.concatenate(strokes)
        assert points.min() > -0.06 and points.max() < 1.06 and points[:, 1].max() > 0.9 and points[:, 1].min() < 0.1


@pytest.mark.parametrize("grid", [(8, 8), *GRIDS[::2]])
def test_batched_features_equal_those_of_transformers(grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    tower, random = build_tower(48), np.random.default_rng(1)
    pictures = np.stack([draw_picture(random, FIGURES[n], grid[0] * PATCH, grid[1] * PATCH) for n in range(3)])
    patches = cut_patches(pictures)
    with torch.inference_mode():
        batched = encode_pictures(tower, patches, *grid)
        packed = tower(patches.flatten(0, 1), grid_thw=torch.tensor([[1, *grid]] * 3))
    for ours, theirs in zip(batched, [packed.pooler_output, *packed.deepstack_features], strict=True):
        assert torch.allclose(ours.flatten(0, 1), theirs, atol=1e-5)


def test_batches_depend_only_on_seed_and_number() -> None:
    (first, grid, scenes), (same, _, _), (other, _, _) = (draw_batch(1, number, 4) for number in (3, 3, 4))
    assert torch.equal(first, same) and (first.shape != other.shape or not torch.equal(first, other))
    assert first.shape == (4, grid[0] * grid[1], 6 * PATCH**2) and len(scenes) == 4


def test_tower_learns_and_continues_from_its_state(tmp_path: Path) -> None:
    plan, out = TowerPlan(steps=40, batch=16, hidden=48, warmup=5), tmp_path / "tower.pt"
    train_tower(plan, out, stop=4)
    assert torch.load(out, weights_only=True)["step"] == 4
    model = train_tower(plan, out)
    assert torch.equal(load_tower(out, 48).probes["ground"].weight, model.probes["ground"].weight)
    assert torch.load(out, weights_only=True)["step"] == 40
    patches, grid, scenes = draw_batch(99, 0, 64)
    with torch.inference_mode():
        right = (model(patches, grid)[0]["ground"].argmax(-1) == label_scenes(scenes)["ground"]).float().mean()
    assert right > 0.25, "two times the chance of one in eight"


def test_tower_of_a_folder_is_loaded_for_another_readout() -> None:
    loaded, weights = load_tower(MODEL_DIR, 192).tower.state_dict(), read_tower(MODEL_DIR)
    assert set(loaded) == set(weights) and all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_readout_writes_the_states_better_than_it_did_before() -> None:
    torch.manual_seed(1)
    size = list_slots()[-1].stop
    words = SoftWords(torch.randn(size, 48), torch.zeros(3, 48), torch.zeros(48), torch.ones(48))
    model = ProbedTower(48)
    error = fit_readout(model, words, seed=3, num_batches=20)
    patches, grid, scenes = draw_batch(4, 0, 32)
    with torch.inference_mode():
        written = model(patches, grid)[1]
    targets = words.table[index_soft_tokens(scenes, grid[0] // MERGE, grid[1] // MERGE)]
    later = float((written - targets).square().mean())
    assert error < 0.98 * float(targets.var()), "an untrained tower tells some colours"
    assert abs(later - error) < 0.2, "the error is that of the weights that were set"
