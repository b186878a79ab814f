"""Text streams of llama.cpp's server while it encodes pictures: `python -m bench.picture_peers`.

The model has the sizes of `python -m bench.pictures`, random weights and Gemma 3's projector, in fp32. `NUM_STREAMS`
clients stream text; the gaps between their tokens are measured alone, and until `--pictures` pictures were read.
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.install import BENCH_DIR, ENVS_DIR, ROOT
from bench.server_process import ServerProcess

NUM_STREAMS, NUM_SLOTS, SLOT_CONTEXT = 8, 9, 2048
VOCABULARY_SIZE, PICTURE_SIDE_PX = 8192, 768
"""A picture has 48 by 48 patches, which take about what the 32 by 64 of the other benchmark take."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<start_of_image>", "<end_of_image>")
PORT, START_TIMEOUT_S, REQUEST_TIMEOUT_S = 8197, 120.0, 600.0
URL = f"http://127.0.0.1:{PORT}"


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of single bytes and one pair, filled up to the size of the vocabulary."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    names = letters + [f"t{number}" for number in range(VOCABULARY_SIZE - len(letters) - len(SPECIAL_TOKENS))]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))


def start_server(folder: Path) -> ServerProcess:
    """Starts llama.cpp's server, and waits until it answers."""
    python = str(ENVS_DIR / "xllamacpp" / "bin" / "python")
    subprocess.run([python, ROOT / "bench" / "vision_gguf.py", folder, "large"], check=True)
    files = [str(folder / name) for name in ("text.gguf", "mmproj.gguf")]
    script, context = str(ROOT / "bench" / "llama_server.py"), str(NUM_SLOTS * SLOT_CONTEXT)
    command = [python, script, files[0], str(PORT), str(NUM_SLOTS), context, files[1]]
    server = ServerProcess(command, BENCH_DIR / "logs" / "picture-peers.log", {})
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and not server.has_exited:
        try:
            if httpx.get(f"{URL}/health").status_code == 200:
                return server
        except httpx.TransportError:
            time.sleep(0.1)
    server.terminate()
    raise RuntimeError(f"the server did not start: {server.log}")


def stream_text(number: int, num_tokens: int, gaps: list[float], is_over: Callable[[], bool]) -> None:
    """Adds the gaps between the tokens of a text. It ends early if `is_over`."""
    prompt = [32 + (7 * number + 3 * index) % 5000 for index in range(64)]
    body = {"prompt": prompt, "n_predict": num_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    last = 0.0
    with httpx.stream("POST", f"{URL}/completion", json=body, timeout=REQUEST_TIMEOUT_S) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: "):
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now
                if is_over():
                    return


def read_pictures(marker: str, count: int) -> None:
    """Sends pictures, one after the other."""
    random = np.random.default_rng(1)
    for _ in range(count):
        file = BytesIO()
        pixels = random.integers(0, 256, (PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        picture = base64.b64encode(file.getvalue()).decode()
        prompt = {"prompt_string": f"a{marker}b", "multimodal_data": [picture]}
        body = {"prompt": prompt, "n_predict": 1, "cache_prompt": False}
        httpx.post(f"{URL}/completion", content=json.dumps(body), timeout=REQUEST_TIMEOUT_S).raise_for_status()


def measure_gaps(num_tokens: int, marker: str, num_pictures: int) -> tuple[list[float], float]:
    """Returns the gaps of all streams in seconds, and the time of a picture; 0 without pictures."""
    gaps: list[float] = []
    done = threading.Event()
    limit = SLOT_CONTEXT - 100 if num_pictures else num_tokens
    streams = [
        threading.Thread(target=stream_text, args=(number, limit, gaps, done.is_set)) for number in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.start()
    while len(gaps) < 20 * NUM_STREAMS:
        time.sleep(0.01)
    del gaps[:]
    began = time.perf_counter()
    read_pictures(marker, num_pictures)
    ended = time.perf_counter()
    if num_pictures:
        done.set()
    for stream in streams:
        stream.join()
    return gaps, (ended - began) / num_pictures if num_pictures else 0.0


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400, help="tokens of a stream without pictures")
    parser.add_argument("--pictures", type=int, default=4)
    options = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    results = {}
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        write_tokenizer(Path(folder))
        server = start_server(Path(folder))
        try:
            marker = httpx.get(f"{URL}/props").json()["media_marker"]
            for name, num_pictures in (("alone", 0), ("beside pictures", options.pictures), ("alone again", 0)):
                gaps, picture_s = measure_gaps(options.tokens, marker, num_pictures)
                results[name] = (statistics.median(gaps), statistics.quantiles(gaps, n=100)[98], max(gaps))
                shown = ", ".join(f"{1000 * value:.1f} ms" for value in results[name])
                print(f"{name}: gaps of median, 99th percentile and longest {shown}; {picture_s:.1f} s a picture")
        finally:
            server.terminate()
    ratios = [beside / alone for beside, alone in zip(results["beside pictures"], results["alone"], strict=True)]
    print("beside pictures / alone: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
