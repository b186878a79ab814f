"""The engine's options, as the command line builds them and the worker process receives them. Needs no torch."""

from typing import Literal

import msgspec

Quantization = Literal["int8"]
KVCacheDtype = Literal["float32", "float16"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a model. The builder chooses what is None from the hardware and the model."""

    device: str | None = None
    """`cpu`, `cuda`, `cuda:1`; None: the first CUDA device, or the CPU."""
    dtype: str | None = None
    """Type of the weights. None: float32 on a CPU, bfloat16 on a GPU."""
    threads: int | None = None
    """CPU threads of torch. None: the physical cores that this process may use."""
    pack_linears: bool = True
    """Repack the weights of linear layers for the CPU's kernels. For fp32 on a CPU only."""
    compile_kernels: bool = True
    """Compile kernels with the machine's C compiler, if there is one. For fp32 on a CPU only."""
    quantization: Quantization | None = None
    """`int8`: linear layers with 8 bits per weight and activation. For fp32 on a CPU only."""
    deterministic: bool = False
    """The same job with the same seed gives the same tokens, alone and in any batch."""
    max_model_len: int | None = None
    """Context length in tokens. None: the model's own, which is also the maximum."""
    max_num_seqs: int = 64
    """Maximum number of jobs that run at once."""
    max_waiting: int = 256
    """Maximum number of jobs that wait for a slot."""
    max_batched_tokens: int = 512
    """Maximum number of tokens per step, so that a long prompt does not hold up running jobs."""
    paged_cache: bool | None = None
    """Keep keys and values in pages that all jobs share. None: on a GPU only. On a CPU, copying out of pages costs more
    than it saves."""
    kv_cache_dtype: KVCacheDtype | None = None
    """Type of cached keys and values on a CPU. None: float16 beside int8 layers where compiled kernels can read it,
    otherwise the model's own."""
    kv_cache_gib: float | None = None
    """Memory for keys and values in GiB, cached prefixes included. None: a share of the free memory."""
    enable_prefix_caching: bool = True
    """Keep the keys and values of finished jobs for later jobs of the same owner with the same prefix."""
    max_draft_seqs: int = 1
    """Draft tokens while at most this many jobs run. 0: never draft."""
