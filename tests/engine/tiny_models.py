"""Tiny random models, one for each family, built from a fixed seed; and functions that run jobs on a core."""

import copy
import functools
import os
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Job, Sampling
from antiphon.engine.scheduler.core import Core

torch.set_num_threads(1)

DEVICE = os.environ.get("ANTIPHON_TEST_DEVICE", "cpu")
"""Device of the tiny models; `make test-gpu` sets cuda."""
DEVICE_OPTIONS: dict[str, Any] = {} if DEVICE == "cpu" else {"kv_cache_gib": 0.05}
"""Default options of their cores. A cache on a GPU is allocated at the start, and by default takes what is free."""

VOCAB_SIZE, EOS_ID = 96, 2
BASE_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": EOS_ID,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
SEQUENTIAL_FAMILIES = {"bloom", "recurrent_gemma"}
"""Families that run one sequence at a time, because their layers cannot be batched."""
RECURRENT_FAMILIES = {"mamba", "lfm2"}
"""Families whose layers have a state per sequence."""

NUM_OUTPUT_TOKENS = 24
"""Length of a greedy output that is compared with transformers' own."""

FAMILY_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "llama": ("LlamaConfig", {"head_dim": 32}),
    "mixtral": ("MixtralConfig", {"head_dim": 32, "num_local_experts": 4}),
    "gpt_oss": (
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "head_dim": 32,
            "sliding_window": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": 8}),
    "gemma2": ("Gemma2Config", {"head_dim": 32, "sliding_window": 8, "final_logit_softcapping": 30.0}),
    "olmo": ("OlmoConfig", {}),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "nemotron": ("NemotronConfig", {"partial_rotary_factor": 0.5}),
    "bloom": ("BloomConfig", {}),
    "mamba": ("MambaConfig", {}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        {
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 16,
            "lru_width": 32,
            "num_key_value_heads": 1,
            "tie_word_embeddings": False,
        },
    ),
}


@functools.cache
def tiny_model(family: str) -> PreTrainedModel:
    """Returns the family's model as transformers builds it. All tests share it and must not modify it."""
    class_name, overrides = FAMILY_CONFIGS[family]
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(getattr(transformers, class_name)(**BASE_CONFIG | overrides))  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval().to(DEVICE))


def copy_tiny_model(family: str) -> PreTrainedModel:
    """Returns a copy of the family's model that a test may modify."""
    return copy.deepcopy(tiny_model(family))


def build_tiny_core(family: str = "llama", **options: Any) -> Core:
    """Returns a core on a copy of the family's model."""
    return build_core_from_model(copy_tiny_model(family), options=EngineOptions(**DEVICE_OPTIONS | options))


def make_job(tokens: list[int], name: str = "j", **options: Any) -> Job:
    """Returns a job. `options` are fields of `Job` or of its `Sampling`. Greedy by default."""
    sampling = {key: options.pop(key) for key in list(options) if key in Sampling.__struct_fields__}
    return Job(id=name, tokens=tuple(tokens), sampling=Sampling(**{"temperature": 0.0} | sampling), **options)


def run_jobs(core: Core, *jobs: Job) -> dict[str, list[Chunk]]:
    """Adds the jobs, runs the core until it is idle, and returns the chunks of each job."""
    for job in jobs:
        core.add(job)
    chunks: dict[str, list[Chunk]] = {}
    while core.has_work:
        for name, chunk in core.step():
            chunks.setdefault(name, []).append(chunk)
    return chunks


def join_tokens(chunks: list[Chunk]) -> list[int]:
    """Returns all tokens of a job."""
    return [token for chunk in chunks for token in chunk.tokens]


def generate_tokens(core: Core, job: Job) -> list[int]:
    """Runs one job alone and returns its tokens."""
    return join_tokens(run_jobs(core, job)[job.id])


@torch.inference_mode()
def generate_with_transformers(family: str, prompt: list[int], count: int) -> list[int]:
    """Returns the output of transformers' own greedy `generate`."""
    ids = torch.tensor([prompt], device=DEVICE)
    model: Any = tiny_model(family)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def make_prompts(*lengths: int) -> list[list[int]]:
    """Returns fixed prompts of these lengths."""
    return [
        [3 + (5 * n + 11 * index) % (VOCAB_SIZE - 3) for index in range(length)] for n, length in enumerate(lengths)
    ]
