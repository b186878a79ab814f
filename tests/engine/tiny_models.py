"""Tiny random models, one per family, built on the spot from a fixed seed; and a way to run jobs on a core."""

import copy
import functools
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Job, Sampling
from antiphon.engine.scheduler.core import Core

torch.set_num_threads(1)

VOCAB, EOS = 96, 2
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "bloom": ("BloomConfig", {}),
    "mamba": ("MambaConfig", {}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
}


@functools.cache
def tiny(family: str) -> PreTrainedModel:
    """The family's model as transformers made it; every test gets the same one and must not change it."""
    name, special = FAMILIES[family]
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(getattr(transformers, name)(**BASE | special))  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval())


def fresh(family: str) -> PreTrainedModel:
    """A copy of the family's model, to be changed."""
    return copy.deepcopy(tiny(family))


def core_for(family: str = "llama", **options: Any) -> Core:
    """A core of the family's model."""
    return build_core_from_model(fresh(family), options=EngineOptions(**options))


def job_of(tokens: list[int], name: str = "j", **options: Any) -> Job:
    """A job; options may be the job's own or its sampling's. Greedy unless told otherwise."""
    sampling = {key: options.pop(key) for key in list(options) if key in Sampling.__struct_fields__}
    return Job(id=name, tokens=tuple(tokens), sampling=Sampling(**{"temperature": 0.0} | sampling), **options)


def drain(core: Core, *jobs: Job) -> dict[str, list[Chunk]]:
    """Run until nothing is left; each job's chunks."""
    for job in jobs:
        core.add(job)
    chunks: dict[str, list[Chunk]] = {}
    while core.has_work:
        for name, chunk in core.step():
            chunks.setdefault(name, []).append(chunk)
    return chunks


def tokens_of(chunks: list[Chunk]) -> list[int]:
    """All tokens of a job."""
    return [token for chunk in chunks for token in chunk.tokens]


def run(core: Core, job: Job) -> list[int]:
    """The tokens of a job that runs alone."""
    return tokens_of(drain(core, job)[job.id])


@torch.inference_mode()
def generate(family: str, prompt: list[int], count: int) -> list[int]:
    """What transformers' own greedy ``generate`` says."""
    ids = torch.tensor([prompt])
    model: Any = tiny(family)
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return answer[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def prompts(*lengths: int) -> list[list[int]]:
    """Fixed prompts of these lengths."""
    return [[3 + (5 * n + 11 * place) % (VOCAB - 3) for place in range(length)] for n, length in enumerate(lengths)]
