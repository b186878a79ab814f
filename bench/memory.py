"""Measures memory and starts of a quantized model against its file and the embedded model: part of `make bench`.

    python -m bench.memory --model small --forms int8,int4
    python -m bench.memory --model oss20b --forms int8

The memory is that of the worker process, less what a process holds that has imported the engine and loaded its kernels.
Each form is started twice with an empty cache of packed weights: the first start packs, the second maps what was
packed. Kernels are compiled before. A model with experts in MXFP4 keeps them as they are in its file; the form is that
of its other weights.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.engine.embedded import MODEL_DIR
from bench.gpt_oss_model import build_gpt_oss_config, find_oss_shape, list_tensors
from bench.peers import PEERS, Peer
from bench.random_models import SHAPES, create_model, parse_model_name, weight_shapes
from bench.servers import PeerServer
from bench.stats import TIMES, format_number, markdown_table

FORMS = ("int8", "int4")
MEMORY_TARGETS = {"int8": 0.65, "int4": 0.4}
"""Largest peak memory in proportion to the file in bf16."""
MXFP4_MEMORY_TARGET = 1.1
"""Largest peak memory in proportion to a file with experts in MXFP4."""
START_TARGETS = (3.0, 1.2)
"""Largest time from the first and the second start to the first token, in proportion to the embedded model's."""
TIMEOUT_S = 900.0

PRINT_BASELINE = """
from pathlib import Path
import antiphon.engine.builder
from antiphon.engine.kernels.library import load_kernels
load_kernels()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")))
"""
"""Prints the resident memory of a process that has imported the engine and loaded its kernels."""


@dataclass(frozen=True)
class StartCost:
    """Cost of one start: seconds to the first token, and bytes of the worker process beyond a process without a model."""

    seconds: float
    peak_bytes: int
    ready_bytes: int


@dataclass(frozen=True)
class FormCost:
    """Costs of the first and the second start in one form."""

    form: str
    first: StartCost
    second: StartCost


def measure_baseline(env_vars: Mapping[str, str]) -> int:
    """Returns the bytes that a process holds without a model. Compiles the kernels if there are none."""
    command = ["env", *(f"{name}={value}" for name, value in env_vars.items()), sys.executable, "-c", PRINT_BASELINE]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def has_unfinished_files(cache: Path) -> bool:
    """Tells whether a file of packed weights is being written."""
    return any(cache.rglob("*.tmp"))


async def wait_for_pack(cache: Path) -> None:
    """Waits until the packed weights are written, which begins after the start."""
    await asyncio.sleep(1.0)
    while has_unfinished_files(cache):
        await asyncio.sleep(0.2)


async def measure_start(peer: Peer, model: Path, baseline_bytes: int) -> StartCost:
    """Starts a server, waits for its first token, and terminates it."""
    server = PeerServer(peer, model)
    try:
        await server.wait_until_ready(TIMEOUT_S)
        peak, ready = server.process.largest_process_memory()
        await wait_for_pack(Path(peer.env_vars["XDG_CACHE_HOME"]))
    finally:
        server.process.terminate()
    return StartCost(server.startup_s, peak - baseline_bytes, ready - baseline_bytes)


def quantized_peer(form: str, env_vars: Mapping[str, str]) -> Peer:
    """Returns Antiphon with weights in this form."""
    peer = PEERS["antiphon-int8"]

    def build_command(model: Path, port: int) -> list[str]:
        command = [form if part == "int8" else part for part in peer.build_command(model, port)]
        return [*command, "--force-quantization"]

    return replace(peer, name=f"antiphon-{form}-memory", build_command=build_command, env_vars=env_vars)


async def measure_forms(model: Path, forms: list[str], env_vars: Mapping[str, str]) -> tuple[StartCost, list[FormCost]]:
    """Returns the cost of the embedded model's start, and those of the model in each form."""
    baseline_bytes = measure_baseline(env_vars)
    embedded_peer = replace(PEERS["antiphon"], name="antiphon-memory", env_vars=env_vars)
    embedded = await measure_start(embedded_peer, MODEL_DIR, baseline_bytes)
    costs = []
    for form in forms:
        peer = quantized_peer(form, env_vars)
        starts = [await measure_start(peer, model, baseline_bytes) for _ in range(2)]
        costs.append(FormCost(form, *starts))
    return embedded, costs


def render_costs(
    file_bytes: int,
    largest_bytes: int,
    embedded: StartCost,
    costs: list[FormCost],
    memory_targets: Mapping[str, float] = MEMORY_TARGETS,
) -> str:
    """Returns the report: a table, with each limit behind its value."""
    rows = []
    for cost in costs:
        for name, start, limit in zip(("first", "second"), (cost.first, cost.second), START_TARGETS, strict=True):
            excess = start.peak_bytes - start.ready_bytes
            rows.append(
                [
                    f"{cost.form}, {name} start",
                    format_number(start.peak_bytes / 1e6),
                    f"{start.peak_bytes / file_bytes:.2f}{TIMES} (at most {memory_targets[cost.form]})",
                    format_number(start.ready_bytes / 1e6),
                    f"{format_number(excess / 1e6)} (at most {format_number(largest_bytes / 1e6)})",
                    f"{start.seconds:.1f}",
                    f"{start.seconds / embedded.seconds:.2f}{TIMES} (at most {limit})",
                ]
            )
    header = ["", "peak MB", "to the file", "MB at the first token", "peak beyond that, MB", "s to first token"]
    title = (
        f"The file has {file_bytes / 1e6:.0f} MB; the embedded model takes {embedded.seconds:.1f} s to its first token."
    )
    return f"{title}\n\n{markdown_table([*header, 'to the embedded model'], rows)}"


def largest_tensor_bytes(model: str) -> int:
    """Returns the bytes of the largest tensor in the file of a model of the benchmark."""
    oss_shape = find_oss_shape(model)
    if oss_shape is not None:
        return max(tensor.nbytes for tensor in list_tensors(build_gpt_oss_config(oss_shape, oss_shape["vocab_size"])))
    return max(2 * shape[0] * shape[-1] for _, shape in weight_shapes(SHAPES[model]) if len(shape) > 1)


def main() -> None:
    """Measures the forms and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=parse_model_name, default="small", help="model to start, default small")
    parser.add_argument("--forms", default=",".join(FORMS), help="forms to start, default int8,int4")
    args = parser.parse_args()
    model = create_model(args.model)
    largest_bytes = largest_tensor_bytes(args.model)
    with tempfile.TemporaryDirectory() as cache:
        env_vars = {"XDG_CACHE_HOME": cache}
        embedded, costs = asyncio.run(measure_forms(model, args.forms.split(","), env_vars))
    file_bytes = (model / "model.safetensors").stat().st_size
    targets = dict.fromkeys(FORMS, MXFP4_MEMORY_TARGET) if find_oss_shape(args.model) else MEMORY_TARGETS
    print(render_costs(file_bytes, largest_bytes, embedded, costs, targets))


if __name__ == "__main__":
    main()
