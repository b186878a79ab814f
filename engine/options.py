"""Options of the engine. The command line builds them, the worker process receives them. Needs no torch."""

from typing import Literal

import msgspec

Quantization = Literal["int8", "int4", "stored"]
KVCacheDtype = Literal["float32", "float16"]


class LoraModule(msgspec.Struct, frozen=True):
    """An adapter to load: the model name by which clients request it, and its folder."""

    name: str
    path: str
    root: str = ""
    """Folder that the adapter's files must be in; empty for an adapter that the operator names."""
    required: bool = True
    """False: an engine that cannot load the adapter starts without it, because it served others before."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for running a model. The builder fills in fields that are None from the hardware and the model."""

    device: str | None = None
    """`cpu`, `cuda` or `cuda:1`. None: the first CUDA device, or the CPU if there is none."""
    dtype: str | None = None
    """Type of the weights. None: bfloat16 on a GPU; on a CPU float32, but weights that are stored in 16 bits and are
    multiplied by compiled kernels stay as they are, with float32 activations."""
    threads: int | None = None
    """CPU threads of torch. None: one for each physical core that this process may use, and fewer while other processes
    compete for the cores."""
    pack_linears: bool = True
    """Repacks the weights of linear layers for the CPU kernels. fp32 on a CPU only."""
    compile_kernels: bool = True
    """Compiles kernels with the machine's C compiler, if there is one. fp32 on a CPU only."""
    quantization: Quantization | None = None
    """`int8`: linear layers with 8 bits per weight and activation. `int4`: 4 bits per weight, 8 per activation; the
    output layer stays int8. `stored`: the levels of a quantized checkpoint where a kernel can hold them, else int8.
    fp32 on a CPU only."""
    force_quantization: bool = False
    """Serves a quantized model even if its logits are far from those of fp32."""
    pack_cache: bool = True
    """Keeps the weights that were quantized on disk, so that a second start maps them into memory."""
    pack_cache_gib: float = 32.0
    """Largest size of all packed weights on disk in GiB; those used longest ago are deleted."""
    deterministic: bool = False
    """Makes a job with a given seed produce the same tokens, alone and in any batch."""
    max_model_len: int | None = None
    """Context length in tokens; it must fit into the KV cache. None: the model's own, which is also the maximum, or as
    much of it as fits into the KV cache."""
    max_num_seqs: int = 64
    """Maximum number of jobs that run at once."""
    max_waiting: int = 256
    """Maximum number of jobs that wait for a slot."""
    max_batched_tokens: int = 512
    """Maximum number of tokens per step, so that a long prompt does not hold up running jobs."""
    paged_cache: bool | None = None
    """Keeps keys and values in a pool of pages that all jobs share. None: on a GPU only. On a CPU, copying out of pages
    costs more than it saves."""
    kv_cache_dtype: KVCacheDtype | None = None
    """Type of cached keys and values on a CPU. None: float16 with quantized layers if compiled kernels can read it,
    otherwise the model's own."""
    kv_cache_gib: float | None = None
    """Memory for the KV cache in GiB, cached prefixes included. None: a fraction of the free memory."""
    kv_cache_share: int = 1
    """Number of engines that share the free memory: each takes its part of that fraction."""
    enable_prefix_caching: bool = True
    """Keeps the KV caches of finished jobs for later jobs of the same owner with the same prefix."""
    lora_modules: tuple[LoraModule, ...] = ()
    """Adapters to load at start."""
    allow_lora_updates: bool = False
    """Prepares the model for adapters that are loaded later."""
    max_draft_seqs: int = 1
    """Maximum number of running jobs at which n-gram drafts are still used. 0: never draft."""
