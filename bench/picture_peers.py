"""Text streams of other servers while these encode pictures: `python -m bench.picture_peers [llama.cpp|vllm]`.

The model has the sizes of `python -m bench.pictures` and random weights: for llama.cpp, in fp32 and with Gemma 3's
projector; for vLLM, the same qwen3_vl in bf16. `NUM_STREAMS` clients stream text; the gaps between their tokens are
measured alone, and until `--pictures` pictures were read.
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
from typing import Any, ClassVar

import httpx
import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.install import BENCH_DIR, ENVS_DIR, find_script
from bench.peers import VLLM_ENV
from bench.pictures import MERGE, PATCH, build_model
from bench.server_process import ServerProcess

NUM_STREAMS, NUM_SLOTS, SLOT_CONTEXT = 8, 9, 2048
VOCABULARY_SIZE, PICTURE_SIDE_PX = 8192, 768
"""A picture has 48 by 48 patches, which take about what the 32 by 64 of the other benchmark take."""
TEXT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PORT, START_TIMEOUT_S, REQUEST_TIMEOUT_S = 8197, 300.0, 600.0
URL = f"http://127.0.0.1:{PORT}"
TEMPLATE = """{% for part in messages[0].content %}{% if part.type == "text" %}{{ part.text }}{% else %}\
<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}"""
"""Template of a chat of one message."""


def write_tokenizer(folder: Path, special_tokens: tuple[str, ...]) -> Tokenizer:
    """Writes a tokenizer of single bytes and one pair, filled up to the size of the vocabulary, and returns it."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    names = letters + [f"t{number}" for number in range(VOCABULARY_SIZE - len(letters) - len(special_tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


class LlamaPeer:
    """llama.cpp's server. `marker` stands for a picture in a prompt."""

    text_path = picture_path = "/completion"
    variables: ClassVar[dict[str, str]] = {}
    marker = ""

    def build_command(self, folder: Path) -> list[str]:
        """Writes the model, and returns the command that serves it."""
        write_tokenizer(folder, (*TEXT_TOKENS, "<start_of_image>", "<end_of_image>"))
        python = str(ENVS_DIR / "xllamacpp" / "bin" / "python")
        subprocess.run([python, find_script("vision_gguf"), folder, "large"], check=True)
        files = [str(folder / name) for name in ("text.gguf", "mmproj.gguf")]
        script, context = find_script("llama_server"), str(NUM_SLOTS * SLOT_CONTEXT)
        return [python, script, files[0], str(PORT), str(NUM_SLOTS), context, files[1]]

    def build_text(self, prompt: list[int], num_tokens: int) -> dict[str, Any]:
        """Returns the request of a text stream."""
        return {"prompt": prompt, "n_predict": num_tokens, "stream": True, "ignore_eos": True, "temperature": 0}

    def build_picture(self, picture: str) -> dict[str, Any]:
        """Returns the request that reads a picture, which is in base64."""
        self.marker = self.marker or httpx.get(f"{URL}/props").json()["media_marker"]
        prompt = {"prompt_string": f"a{self.marker}b", "multimodal_data": [picture]}
        return {"prompt": prompt, "n_predict": 1, "cache_prompt": False}


class VllmPeer:
    """vLLM on CPUs."""

    text_path, picture_path = "/v1/completions", "/v1/chat/completions"
    variables: ClassVar[dict[str, str]] = VLLM_ENV

    def build_command(self, folder: Path) -> list[str]:
        """Writes the model, and returns the command that serves it."""
        special = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
        tokenizer = write_tokenizer(folder, (*TEXT_TOKENS, *special))
        model = build_model()
        start, end, image, video = map(tokenizer.token_to_id, special)
        model.config.vision_start_token_id, model.config.vision_end_token_id = start, end
        model.config.image_token_id, model.config.video_token_id = image, video
        model.config.text_config.rope_parameters["mrope_interleaved"] = True
        model.bfloat16().save_pretrained(folder)
        processor = {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "patch_size": PATCH,
            "merge_size": MERGE,
            "size": {"shortest_edge": 1024, "longest_edge": 16_777_216},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }
        names = {"image_token": "<|image_pad|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
        for name, content in (("preprocessor_config.json", processor), ("tokenizer_config.json", names)):
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return [
            *(str(ENVS_DIR / "vllm" / "bin" / "vllm"), "serve", str(folder), "--served-model-name", "m"),
            *("--host", "127.0.0.1", "--port", str(PORT), "--dtype", "bfloat16", "--enforce-eager"),
            *("--max-model-len", str(SLOT_CONTEXT), "--max-num-seqs", str(NUM_SLOTS)),
        ]

    def build_text(self, prompt: list[int], num_tokens: int) -> dict[str, Any]:
        """Returns the request of a text stream."""
        body = {"model": "m", "prompt": prompt, "max_tokens": num_tokens, "stream": True}
        return body | {"ignore_eos": True, "temperature": 0}

    def build_picture(self, picture: str) -> dict[str, Any]:
        """Returns the request that reads a picture, which is in base64."""
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        return {"model": "m", "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}


PicturePeer = LlamaPeer | VllmPeer
PEERS: dict[str, type[PicturePeer]] = {"llama.cpp": LlamaPeer, "vllm": VllmPeer}


def start_server(peer: PicturePeer, folder: Path) -> ServerProcess:
    """Starts a server, and waits until it answers."""
    server = ServerProcess(peer.build_command(folder), BENCH_DIR / "logs" / "picture-peers.log", peer.variables)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and not server.has_exited:
        try:
            if httpx.get(f"{URL}/health").status_code == 200:
                return server
        except httpx.TransportError:
            time.sleep(0.1)
    server.terminate()
    raise RuntimeError(f"the server did not start: {server.log}")


def stream_text(
    peer: PicturePeer, number: int, num_tokens: int, gaps: list[float], is_over: Callable[[], bool]
) -> None:
    """Adds the gaps between the tokens of a text. It ends early if `is_over`."""
    prompt = [32 + (7 * number + 3 * index) % 5000 for index in range(64)]
    body = peer.build_text(prompt, num_tokens)
    last = 0.0
    with httpx.stream("POST", f"{URL}{peer.text_path}", json=body, timeout=REQUEST_TIMEOUT_S) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now
                if is_over():
                    return


def read_pictures(peer: PicturePeer, count: int) -> None:
    """Sends pictures, one after the other."""
    random = np.random.default_rng(1)
    for _ in range(count):
        file = BytesIO()
        pixels = random.integers(0, 256, (PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        picture = base64.b64encode(file.getvalue()).decode()
        body = peer.build_picture(picture)
        httpx.post(f"{URL}{peer.picture_path}", json=body, timeout=REQUEST_TIMEOUT_S).raise_for_status()


def measure_gaps(peer: PicturePeer, num_tokens: int, num_pictures: int) -> tuple[list[float], float]:
    """Returns the gaps of all streams in seconds, and the time of a picture; 0 without pictures."""
    gaps: list[float] = []
    done = threading.Event()
    limit = SLOT_CONTEXT - 100 if num_pictures else num_tokens
    streams = [
        threading.Thread(target=stream_text, args=(peer, number, limit, gaps, done.is_set))
        for number in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.start()
    while len(gaps) < 20 * NUM_STREAMS:
        time.sleep(0.01)
    del gaps[:]
    began = time.perf_counter()
    read_pictures(peer, num_pictures)
    ended = time.perf_counter()
    if num_pictures:
        done.set()
    for stream in streams:
        stream.join()
    return gaps, (ended - began) / num_pictures if num_pictures else 0.0


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="?", choices=[*PEERS], default="llama.cpp")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of a stream without pictures")
    parser.add_argument("--pictures", type=int, default=4)
    options = parser.parse_args()
    print(f"{options.server}; load of the machine: {os.getloadavg()[0]:.1f}")
    results, peer = {}, PEERS[options.server]()
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        server = start_server(peer, Path(folder))
        try:
            for name, num_pictures in (("alone", 0), ("beside pictures", options.pictures), ("alone again", 0)):
                gaps, picture_s = measure_gaps(peer, options.tokens, num_pictures)
                results[name] = (statistics.median(gaps), statistics.quantiles(gaps, n=100)[98], max(gaps))
                shown = ", ".join(f"{1000 * value:.1f} ms" for value in results[name])
                print(f"{name}: gaps of median, 99th percentile and longest {shown}; {picture_s:.1f} s a picture")
        finally:
            server.terminate()
    ratios = [beside / alone for beside, alone in zip(results["beside pictures"], results["alone"], strict=True)]
    print("beside pictures / alone: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
