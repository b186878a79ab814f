"""The process that decodes pictures: its time for each picture, its memory, and what the front end spends.

    python -m bench.media --rounds 7

The model is of the qwen3_vl family; no weights are needed. Times before the processor are CPU times in this process;
all others include the way to the sandbox's process and back. Each figure of memory is of a new process.
"""

import argparse
import asyncio
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.sandbox.media.image_decoding import decode_rgb
from antiphon.app.sandbox.media.image_preparation import scale_image
from antiphon.app.sandbox.media.messages import ImageLimits
from bench.stats import format_number, markdown_table, median
from tests.app.media.pictures import make_png, write_model

TOKENS = 512
LARGEST = (8000, 5000)
"""Sides of a picture at the limit of 40 million pixels."""
MIB = 1 << 20


def draw_screen(size: tuple[int, int]) -> Image.Image:
    """Returns a picture like a screenshot: areas of one colour, lines of small marks, and a photograph in a corner."""
    width, height = size
    screen = Image.new("RGB", size, (250, 250, 250))
    marks = Image.effect_noise((width * 2 // 3, 6), 80).point(lambda value: 30 if value > 140 else 250)
    for top in range(20, height - 20, 14):
        screen.paste(marks.crop((0, 0, marks.width - top % 300, 6)), (20 + 40 * (top % 5), top))
    screen.paste((30, 60, 120), (0, 0, width, 16))
    screen.paste(draw((width // 4, height // 3)), (width * 3 // 4, 40))
    return screen


def draw(size: tuple[int, int]) -> Image.Image:
    """Returns a picture with areas and noise, as screenshots and photographs have them."""
    area = Image.linear_gradient("L").resize(size)
    noise = Image.effect_noise((512, 512), 40).resize(size)
    return Image.merge("RGB", (area, noise, Image.blend(area, noise, 0.5)))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    """Returns a picture as a file."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read_memory(pid: int, name: str) -> float:
    """Returns a figure of a process's memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def measure_decoding(pictures: dict[str, bytes], rounds: int) -> list[list[str]]:
    """Returns the CPU time before the processor: decoding, and scaling to half a million pixels."""
    rows = []
    for name, data in pictures.items():
        decoding, scaling = [], []
        for _ in range(rounds):
            started_s = time.process_time()
            image = decode_rgb(data, ImageLimits())
            decoded_s = time.process_time()
            scale = (TOKENS * 1024 / (image.width * image.height)) ** 0.5
            scale_image(image, (int(image.width * scale), int(image.height * scale)))
            decoding.append(decoded_s - started_s)
            scaling.append(time.process_time() - decoded_s)
        both = [sum(pair) for pair in zip(decoding, scaling, strict=True)]
        figures = (median(decoding), median(scaling), median(both), min(both))
        rows.append([name, format_number(len(data) / MIB), *(format_number(1000 * value) for value in figures)])
    return rows


async def measure_preparation(folder: Path, pictures: dict[str, bytes], rounds: int) -> list[list[str]]:
    """Returns the elapsed time of a preparation, and the CPU time of this process in it."""
    rows = []
    preparer = MediaPreparer(MediaLimits(image_tokens=TOKENS))
    await preparer.describe(folder)
    for name, data in pictures.items():
        elapsed, spent = [], []
        for number in range(rounds):
            started_s, cpu_s = time.monotonic(), time.process_time()
            digest = hashlib.sha256(data).digest()
            await preparer.prepare(str(number), digest, data, folder=folder, detail=None)
            elapsed.append(time.monotonic() - started_s)
            spent.append(time.process_time() - cpu_s)
        figures = (median(elapsed), min(elapsed), median(spent), min(spent))
        rows.append([name, *(format_number(1000 * value) for value in figures)])
    await preparer.close()
    return rows


async def measure_memory(folder: Path, pictures: dict[str, bytes]) -> list[list[str]]:
    """Returns the time until the first answer of a new process, its memory at its peak and afterwards."""
    rows = []
    for name, data in pictures.items():
        preparer = MediaPreparer(MediaLimits(image_tokens=TOKENS, max_image_bytes=1 << 30))
        started_s = time.monotonic()
        await preparer.prepare("a", hashlib.sha256(data).digest(), data, folder=folder, detail=None)
        ready_s = time.monotonic() - started_s
        pid = preparer.processes[0].pid
        assert pid is not None
        memory = [read_memory(pid, figure) for figure in ("VmHWM", "VmRSS")]
        rows.append([name, format_number(ready_s), *(format_number(value) for value in memory)])
        await preparer.close()
    return rows


def make_large_pictures() -> dict[str, bytes]:
    """Returns pictures at the limit of pixels, by format and mode."""
    image = draw(LARGEST)
    width, height = LARGEST
    return {
        "PNG RGB": encode(image, "PNG", compress_level=1),
        "PNG RGBA": encode(image.convert("RGBA"), "PNG", compress_level=1),
        "PNG of 16 bits": make_png(width, height, os.urandom(width * 2) * height, depth=16, color=0),
        "JPEG RGB": encode(image, "JPEG"),
        "JPEG CMYK": encode(image.convert("CMYK"), "JPEG"),
        "WebP": encode(image, "WEBP", method=0),
        "GIF": encode(image.convert("P"), "GIF"),
    }


async def run(folder: Path, rounds: int) -> None:
    """Measures and prints all tables."""
    screen, noise, photo = draw_screen((1920, 1080)), draw((1920, 1080)), draw((4000, 3000))
    pictures = {
        "1920x1080 PNG, screen": encode(screen, "PNG"),
        "1920x1080 PNG, noise": encode(noise, "PNG"),
        "1920x1080 JPEG, noise": encode(noise, "JPEG"),
        "12 Mpx JPEG": encode(photo, "JPEG", quality=90),
    }
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    heads = ["picture", "MiB", "decode, ms", "scale, ms", "both, ms", "least, ms"]
    _print_table(heads, measure_decoding(pictures, rounds))
    heads = ["picture", "preparation, ms", "least, ms", "CPU of the front end, ms", "least, ms"]
    _print_table(heads, await measure_preparation(folder, pictures, rounds))
    small = {"first picture, 64x64": make_png(64, 64)}
    heads = ["picture", "first answer, s", "peak, MiB", "afterwards, MiB"]
    _print_table(heads, await measure_memory(folder, small | make_large_pictures()))


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(markdown_table(heads, rows) + "\n")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(write_model(Path(folder)), arguments.rounds))


if __name__ == "__main__":
    main()
