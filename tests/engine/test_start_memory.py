"""Memory of the engine's process after a start: what packing frees is returned to the system."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

BUILD_INT8_CORE = """
import ctypes, gc, logging
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.worker import gc_paused

def resident_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

torch.set_num_threads(1)
logging.disable()
config = LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1536, num_hidden_layers=12,
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
"""Builds an int8 core of 39 M parameters: 157 MB in fp32. Prints the resident memory, then what remains if garbage
is collected and the C heap is remaining."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_start_leaves_no_freed_memory_in_the_process() -> None:
    result = subprocess.run([sys.executable, "-c", BUILD_INT8_CORE], capture_output=True, text=True, check=True)
    resident, remaining = map(float, result.stdout.split())
    assert resident - remaining < 10, result.stdout
