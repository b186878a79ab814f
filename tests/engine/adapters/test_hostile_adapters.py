"""Adapters of a client that wants to end the engine, or to hold it: each is refused in one line, and the engine continues."""

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.engine.adapters.lora_config import MAX_CONFIG_BYTES, MAX_PATTERNS, read_lora_config
from antiphon.engine.errors import LoadError
from antiphon.engine.scheduler.core import Core
from tests.engine.adapters.adapter_folders import build_adapted_core, make_adapter
from tests.engine.tiny_models import generate_tokens, make_job, make_prompts

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HARMFUL_PATTERN = r"(([a-z._0-9]+)+)+!"
MAX_CPU_S = 30
"""Guards against hanging: each of these took minutes, or had no end."""


@pytest.fixture(scope="module")
def core() -> Core:
    return build_adapted_core("qwen3", {}, allow_lora_updates=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an adapter in the folder `root`, besides which nothing may be read."""
    (tmp_path / "secret").mkdir()
    make_adapter(tmp_path / "secret/adapter", "qwen3", 2)
    return make_adapter(tmp_path / "root/adapter", "qwen3", 1)


def change_config(**settings: Any) -> Callable[[Path], None]:
    """Returns a function that changes the configuration in an adapter's folder."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | settings))

    return change


def change_tensors(change_one: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Returns a function that changes the weights in an adapter's folder."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        save_file({name: change_one(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS)

    return change


def replace_file(name: str, replace: Callable[[Path], object]) -> Callable[[Path], None]:
    """Returns a function that puts something else in the place of a file of an adapter's folder."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        replace(folder / name)

    return change


def repeat_weights(folder: Path) -> None:
    """Gives a layer a second pair of matrices, under the name that PEFT writes for a vision-language model."""
    tensors = load_file(folder / WEIGHTS)
    again = {name.replace("model.layers.0", "model.language_model.layers.0"): each for name, each in tensors.items()}
    save_file(tensors | {name: each.clone() for name, each in again.items()}, folder / WEIGHTS)


def write_header(size: int) -> Callable[[Path], object]:
    """Returns a function that writes a safetensors file with a header of this size."""
    return lambda path: path.write_bytes(struct.pack("<Q", size) + b"{}".ljust(size))


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "config is a pipe": (replace_file(CONFIG, os.mkfifo), "a named pipe, not a regular file"),
    "config is a link to a device": (
        replace_file(CONFIG, lambda path: path.symlink_to("/dev/zero")),
        "is outside of|a device",
    ),
    "config is a link out of the folder": (
        replace_file(CONFIG, lambda path: path.symlink_to(f"../../secret/adapter/{CONFIG}")),
        "is outside of",
    ),
    "weights are a link out of the folder": (
        replace_file(WEIGHTS, lambda path: path.symlink_to(f"../../secret/adapter/{WEIGHTS}")),
        "is outside of",
    ),
    "weights are a pipe": (replace_file(WEIGHTS, os.mkfifo), f"holds no {WEIGHTS}"),
    "weights are a device": (
        replace_file(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
        f"holds no {WEIGHTS}|is outside",
    ),
    "config is large": (
        replace_file(CONFIG, lambda path: path.write_bytes(b" " * (MAX_CONFIG_BYTES + 1))),
        "has more than 1048576 bytes",
    ),
    "config is nested": (
        replace_file(CONFIG, lambda path: path.write_bytes(b'{"a":' * 20_000 + b"1" + b"}" * 20_000)),
        "nested too deeply",
    ),
    "target_modules backtracks": (change_config(target_modules=HARMFUL_PATTERN), "which target_modules does not name"),
    "exclude_modules backtracks": (
        change_config(exclude_modules="(?:" * 90 + ".*" + ")*" * 90 + "!", target_modules=HARMFUL_PATTERN),
        "which target_modules does not name|takes too long",
    ),
    "target_modules repeats": (change_config(target_modules="(((a{100}){100}){100}){100}"), "is invalid .*too long"),
    "target_modules is nested": (change_config(target_modules="(" * 4000), "is invalid"),
    "target_modules refers to a group": (change_config(target_modules=r"(a)\1"), "is invalid .*not supported"),
    "rank_pattern repeats": (change_config(rank_pattern={"(?:){1000000000}": 4}), "is invalid .*too long"),
    "rank_pattern has many keys": (
        change_config(rank_pattern={f"layer{number}": 4 for number in range(MAX_PATTERNS + 1)}),
        "is invalid .*more than 2048 keys",
    ),
    "alpha_pattern has many expressions": (
        change_config(alpha_pattern={f"{number}|!": 4 for number in range(33)}),
        "32 that are more than a name",
    ),
    "alpha is infinite": (change_config(lora_alpha=float("inf")), "must be finite numbers"),
    "alpha is no number": (change_config(alpha_pattern={"q_proj": float("nan")}), "must be finite numbers"),
    "key is long": (change_config(**{"x" * 100_000: "y" * 100_000}), r"has x{60}… = "),
    "header is large": (replace_file(WEIGHTS, write_header((8 << 20) + 1)), "header has more than 8388608 bytes"),
    "header is nested": (
        replace_file(WEIGHTS, lambda path: path.write_bytes(struct.pack("<Q", 10_000) + b"[" * 10_000)),
        f"{WEIGHTS} cannot be read",
    ),
    "weights are empty": (replace_file(WEIGHTS, lambda path: path.touch()), f"{WEIGHTS} cannot be read"),
    "weights are cut short": (
        lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1),
        f"{WEIGHTS} cannot be read",
    ),
    "weights are in 8 bits": (
        change_tensors(lambda tensor: tensor.to(torch.float8_e4m3fn)),
        "is stored in float8_e4m3fn; save it in",
    ),
    "weights are whole numbers": (change_tensors(lambda tensor: tensor.to(torch.int64)), "is stored in int64"),
    "a layer has weights twice": (repeat_weights, r"has weights for model\.layers\.0\..* twice"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_adapter_of_an_attack_is_refused_and_the_engine_continues(name: str, folder: Path, core: Core) -> None:
    attack, message = ATTACKS[name]
    attack(folder)
    assert core.adapters is not None
    started_at = time.process_time()
    with pytest.raises(LoadError, match=message) as raised:
        core.adapters.load("a", str(folder), str(folder.parent))
    assert time.process_time() - started_at < MAX_CPU_S
    assert len(raised.value.message) < 1000
    assert "\n" not in raised.value.message
    assert core.adapters.description == ""


@pytest.mark.parametrize("name", ["config is a pipe", "config is a link to a device", "weights are a pipe"])
def test_adapter_that_the_operator_names_is_checked_as_well(name: str, folder: Path, core: Core) -> None:
    attack, _ = ATTACKS[name]
    attack(folder)
    assert core.adapters is not None
    with pytest.raises(LoadError, match=r"not a regular file|holds no"):
        core.adapters.load("a", str(folder))


@pytest.mark.parametrize("place", ["../secret/adapter", "link", "nothing", "null\0", "x" * 300])
def test_folder_outside_tells_nothing_of_itself(place: str, folder: Path, core: Core) -> None:
    root = folder.parent
    (root / "link").symlink_to("../secret/adapter")
    assert core.adapters is not None
    with pytest.raises(LoadError) as raised:
        core.adapters.load("a", str(root / place), str(root))
    is_inside = place in ("nothing", "x" * 300)
    reason = "there is no such folder" if is_inside else "it is not in a folder of --lora-dir"
    assert reason in raised.value.message


def test_links_within_the_folder_are_followed(folder: Path, core: Core) -> None:
    (folder.parent / "blobs").mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).rename(folder.parent / f"blobs/{name}")
        (folder / name).symlink_to(f"../blobs/{name}")
    assert core.adapters is not None
    core.adapters.load("a", str(folder), str(folder.parent))
    assert (
        len(generate_tokens(core, make_job(make_prompts(9)[0], "j", adapter="a", max_tokens=3, ignore_eos=True))) == 3
    )
    core.adapters.unload("a")


@pytest.mark.parametrize(
    ("keys", "layer", "expected"),
    [
        (["q_proj"], "a.q_proj", 2),
        (["q_proj"], "aq_proj", 4),
        (["q.proj"], "a.q_proj", 2),
        (["b.q_proj"], "b.q_proj", 2),
        (["c.b.q_proj"], "b.q_proj", 4),
        (["!q", "q|q_proj"], "a.q_proj", 2),
        (["q_proj|b"], "a.q_proj.c", 4),
    ],
)
def test_keys_of_ranks_match_the_ends_of_names(keys: list[str], layer: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"r": 4, "rank_pattern": dict.fromkeys(keys, 2)}))
    assert read_lora_config(tmp_path).rank_of(layer) == expected
