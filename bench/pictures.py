"""The encoder of pictures beside transformers' own, and what text streams feel of pictures that are encoded.

    python -m bench.pictures

The model is a qwen3_vl with random weights: a tower of 12 layers of 768 with patches of 16, and a text part of 8 layers
of 512 in int8, from files in bf16. It runs in this process. First, images a second: `get_image_features` of the model
as transformers loads it, in fp32, and the engine's encoder. Then the gaps between two tokens of `NUM_STREAMS` text streams, alone and while
pictures of 512 tokens are encoded without pause.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from antiphon.engine.builder import build_core
from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core

NUM_STREAMS = 8
SOFT_ID, PATCH, MERGE = 90, 16, 2
SIDES_PX = (448, 1024)
STREAM_PICTURE_GRID = (1, 32, 64)
"""Patches of a picture of 512 tokens."""
WARM_UP_STEPS = 20


def build_model() -> Any:
    """Returns the model in fp32."""
    torch.manual_seed(1)
    text = {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
    }
    vision = {
        "depth": 12,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_heads": 12,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": 512,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [3, 6],
    }
    config = CONFIG_MAPPING["qwen3_vl"](
        text_config=text, vision_config=vision, image_token_id=SOFT_ID, video_token_id=91, tie_word_embeddings=False
    )
    return AutoModelForImageTextToText.from_config(config).eval()  # type: ignore[no-untyped-call]


def make_arrays(grid: tuple[int, ...], seed: int) -> dict[str, Tensor]:
    """Returns the arrays of a random picture of these patches."""
    random = torch.Generator().manual_seed(seed)
    count = grid[0] * grid[1] * grid[2]
    pixels = torch.randn((count, 3 * 2 * PATCH * PATCH), generator=random)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}


@torch.inference_mode()
def measure_encoders(model: Any, core: Core, repeats: int, sides: Sequence[int]) -> None:
    """Prints the images a second of both encoders, which take turns."""
    assert core.pictures is not None
    encoder = core.pictures._encoder
    for side in sides:
        grid = (1, side // PATCH, side // PATCH)
        arrays = make_arrays(grid, 1)
        rows = grid[1] * grid[2] // MERGE**2
        seconds: dict[str, list[float]] = {"transformers": [], "engine": []}
        for _ in range(repeats):
            started_at = time.perf_counter()
            expected = model.model.get_image_features(**arrays, return_dict=True).pooler_output[0]
            between = time.perf_counter()
            features = encoder.encode(arrays, rows)
            seconds["transformers"].append(between - started_at)
            seconds["engine"].append(time.perf_counter() - between)
        error = float((features.pooled - expected).abs().max() / expected.abs().max())
        rates = {name: 1 / min(values) for name, values in seconds.items()}
        shown = ", ".join(f"{name} {rate:.2f}/s" for name, rate in rates.items())
        print(
            f"{side} px, {rows} tokens: {shown}, ratio {rates['engine'] / rates['transformers']:.2f}, error {error:.1e}"
        )


def measure_gaps(core: Core, num_steps: int, num_pictures: int = 0) -> list[float]:
    """Returns the gaps of all streams in seconds, over `num_steps`, or again and again until pictures are encoded."""
    numbers, gaps = itertools.count(), list[float]()
    last_picture = core.stats().encoded_images + num_pictures
    while not gaps or core.stats().encoded_images < last_picture:
        _add_streams(core, num_steps)
        last: dict[str, float] = {}
        found: list[float] = []
        while any(name.startswith("text") for name in core.jobs):
            if num_pictures and not any(name.startswith("picture") for name in core.jobs):
                core.add(_make_picture_job(next(numbers)))
            _run_step(core, last, found)
        gaps += found[NUM_STREAMS * WARM_UP_STEPS :]
    for name in list(core.jobs):
        core.cancel(name)
        core.step()
    return gaps


def _add_streams(core: Core, num_steps: int) -> None:
    for number in range(NUM_STREAMS):
        tokens = tuple(100 + (7 * number + 3 * index) % 5000 for index in range(64))
        sampling = Sampling(temperature=0.0, ignore_eos=True, max_tokens=num_steps)
        core.add(Job(id=f"text{number}", tokens=tokens, sampling=sampling, owner=f"text{number}"))


def _run_step(core: Core, last: dict[str, float], gaps: list[float]) -> None:
    """Runs a step. Adds the gaps since the last tokens of the streams, and sends the pictures that are asked for."""
    assert core.pictures is not None
    for name, chunk in core.step():
        now = time.perf_counter()
        if name.startswith("text") and chunk.tokens:
            if name in last:
                gaps.append(now - last[name])
            last[name] = now
    for job_id, key in core.pictures.take_requests():
        core.pictures.provide_tensors(job_id, key, make_arrays(STREAM_PICTURE_GRID, int(job_id[7:])))


def _make_picture_job(number: int) -> Job:
    rows = STREAM_PICTURE_GRID[1] * STREAM_PICTURE_GRID[2] // MERGE**2
    span = MediaSpan(key=number.to_bytes(32, "big"), offset=1, length=rows, rows=rows, grid=STREAM_PICTURE_GRID)
    tokens = (5, *[SOFT_ID] * rows, 6)
    return Job(id=f"picture{number}", tokens=tokens, sampling=Sampling(max_tokens=1), owner="pictures", media=(span,))


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Measures the encoder of pictures, and text streams beside it.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pictures", type=int, default=4, help="pictures of 512 tokens beside the streams")
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES_PX, help="sides of the pictures in pixels")
    options = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads")
    engine_options = EngineOptions(quantization="int8", force_quantization=True, pack_cache=False, max_draft_seqs=0)
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        build_model().to(torch.bfloat16).save_pretrained(folder)
        core = build_core(Path(folder), engine_options)
        reference = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    measure_encoders(reference, core, options.repeats, options.sides)
    del reference
    measure_gaps(core, 60)
    results = {}
    for name, num_pictures in (("alone", 0), ("beside pictures", options.pictures), ("alone again", 0)):
        started_at = time.perf_counter()
        gaps = measure_gaps(core, options.steps, num_pictures)
        rate = num_pictures / (time.perf_counter() - started_at)
        results[name] = (statistics.median(gaps), statistics.quantiles(gaps, n=100)[98], max(gaps))
        shown = ", ".join(f"{1000 * value:.1f} ms" for value in results[name])
        print(f"{name}: gaps of median, 99th percentile and longest {shown}; {rate:.2f} pictures/s")
    ratios = [beside / alone for beside, alone in zip(results["beside pictures"], results["alone"], strict=True)]
    print("beside pictures / alone: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
