"""Memory of the engine's process after a start: what packing frees is returned to the system."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

BUILD_INT8_CORE = """
import ctypes, gc, logging
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.child.worker import gc_paused

def resident_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

torch.set_num_threads(1)
logging.disable()
config = LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1536, num_hidden_layers=6,
                     num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256)
model = AutoModelForCausalLM.from_config(config).eval()
with gc_paused():
    core = build_core_from_model(model, options=EngineOptions(quantization="int8"), optimize=True)
resident = resident_mib()
gc.unfreeze()
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
print(resident, resident_mib())
"""
"""Builds an int8 core of 19 M parameters: 78 MB in fp32. Prints the resident memory, then what remains if garbage
is collected and the C heap is remaining."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_start_leaves_no_freed_memory_in_the_process() -> None:
    result = subprocess.run([sys.executable, "-c", BUILD_INT8_CORE], capture_output=True, text=True, check=True)
    resident, remaining = map(float, result.stdout.split())
    assert resident - remaining < 10, result.stdout


def write_bf16_model(folder: Path) -> None:
    """Writes a model of 35 M parameters in bf16, whose embedding and output layer take 31 MB each."""
    config = LlamaConfig(
        vocab_size=30_000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


LARGEST_WEIGHT_MIB = 30_000 * 512 * 2 / 2**20

BUILD_INT4_CORE = """
import logging, sys
from pathlib import Path
import torch
from antiphon.engine.builder import build_core
from antiphon.engine.options import EngineOptions

def read_mib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

logging.disable()
options = EngineOptions(quantization="int4", threads=1, kv_cache_gib=0.01, force_quantization=True, max_model_len=256)
core = build_core(Path(sys.argv[1]), options)
print(read_mib("VmHWM"), read_mib("VmRSS"))
"""
"""Builds an int4 core of a model's folder. Prints the peak of the resident memory, then what is resident at the end."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_at_most_one_weight_more_than_the_model(tmp_path: Path) -> None:
    write_bf16_model(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", BUILD_INT4_CORE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    peak, resident = map(float, result.stdout.split())
    assert peak - resident < LARGEST_WEIGHT_MIB, result.stdout
