"""Options of the engine. The command line builds them, the worker process receives them. Needs no torch."""

from functools import partial
from typing import Annotated, Literal

import msgspec

Quantization = Literal["int8", "int4", "stored"]
KVCacheDtype = Literal["float32", "float16"]


class Option(msgspec.Struct, frozen=True):
    """Metadata of a field that an option of the command line sets. The field has the option's type and default.

    `antiphon.app.cli.options` derives from it the option, its environment variable and its key in a file.
    """

    group: str
    """Heading of the option in `--help`."""
    description: str
    name: str = ""
    """Name without dashes. Empty: that of the field, in the singular and without its unit `_s`."""
    minimum: int | None = None
    above: int | None = None
    """Greatest number that is too small."""
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    """Values that are allowed, if the type is no `Literal` of exactly these."""
    metavar: str | None = None
    syntax: str = ""
    """Name of the form in which the value is written, if the type does not tell."""
    scope: Literal["server", "each", "one"] = "server"
    """`each`: holds for every model, unless `--model-option` sets it for one. `one`: belongs to one model."""


_engine = partial(Option, "Engine", scope="each")
_memory = partial(Option, "Memory", scope="each")


class LoraModule(msgspec.Struct, frozen=True):
    """An adapter to load: the model name by which clients request it, and its folder."""

    name: str
    path: str
    root: str = ""
    """Folder that the adapter's files must be in; empty for an adapter that the operator names."""
    required: bool = True
    """False: an engine that cannot load the adapter starts without it, because it served others before."""


class SecretBytes(msgspec.Struct, frozen=True):
    """Bytes that no log shows. Empty: there is no secret."""

    value: bytes = b""

    def __repr__(self) -> str:
        return "SecretBytes(…)" if self.value else "SecretBytes()"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for running a model. The builder fills in fields that are None from the hardware and the model."""

    device: Annotated[
        str | None, _engine("Device to run on: cpu, cuda, cuda:1, … Default: cuda if available, otherwise cpu.")
    ] = None
    dtype: Annotated[
        str | None,
        _engine(
            "Type to compute with: float32 dequantizes a quantized checkpoint, and takes 4 bytes for each weight. "
            "Default: as the weights are stored.",
            choices=("float32",),
        ),
    ] = None
    """Type of the weights. None: bfloat16 on a GPU; on a CPU float32, but weights that are stored in 16 bits and are
    multiplied by compiled kernels stay as they are, with float32 activations."""
    threads: Annotated[
        int | None, _engine("CPU threads. Default: the physical cores, fewer under load.", minimum=1)
    ] = None
    quantization: Annotated[
        Quantization | None, _engine("Quantize linear layers to 8 or 4 bits (CPU only).", choices=("int8", "int4"))
    ] = None
    """`int8`: linear layers with 8 bits per weight and activation. `int4`: 4 bits per weight, 8 per activation; the
    output layer stays int8. `stored`: the levels of a quantized checkpoint where a kernel can hold them, else int8.
    fp32 on a CPU only."""
    draft_model: Annotated[
        str | None,
        _engine(
            "Folder or hub id of a small model with the same vocabulary: it drafts tokens, which the model verifies "
            "several at a time (speculative decoding)."
        ),
    ] = None
    force_quantization: Annotated[bool, _engine("Serve a quantized model even if its logits differ too much.")] = False
    deterministic: Annotated[bool, _engine("Generate the same tokens for the same seed under any load. Slower.")] = (
        False
    )
    compile_kernels: Annotated[bool, _engine("Compile native CPU kernels at the first start.")] = True
    max_model_len: Annotated[
        int | None, _engine("Maximum context length in tokens. Default: the model's.", minimum=1)
    ] = None
    """It must fit into the KV cache. None: the model's own, which is also the maximum, or as much of it as fits."""
    max_num_seqs: Annotated[int, _engine("Maximum number of concurrent sequences.", minimum=1)] = 64
    kv_cache_gib: Annotated[
        float | None,
        _memory("KV cache memory in GiB. Default: 70 % of the memory that is free after loading.", above=0),
    ] = None
    """Cached prefixes are included."""
    kv_cache_dtype: Annotated[
        KVCacheDtype | None,
        _memory("KV cache type on a CPU. Default: float16 with quantized weights, otherwise the model's."),
    ] = None
    """None: float16 with quantized layers if compiled kernels can read it, otherwise the model's own."""
    keep_vision_tower: bool = True
    """Keeps the vision tower of a model, so that it takes pictures. False frees its memory."""
    image_cache_mib: Annotated[
        int, _memory("Memory for the features of pictures in MiB, which later requests reuse.", minimum=0)
    ] = 512
    pack_cache: Annotated[
        bool, _memory("Keep quantized weights in ~/.cache/antiphon, so that the next start is fast.")
    ] = True
    pack_cache_gib: Annotated[
        float, _memory("Disk space for quantized weights in GiB; those used longest ago are deleted.", above=0)
    ] = 32.0
    prefix_cache_disk: Annotated[
        float | None,
        _memory(
            "Disk space in GiB for computed prefixes, which jobs reuse after a restart; those used longest ago are "
            "deleted. CPU only. Default: they are kept in memory only.",
            above=0,
        ),
    ] = None
    prefix_cache_key: SecretBytes = SecretBytes()
    """Encrypts prefixes on disk. Empty: they are encrypted with a key that lies beside them."""
    lora_modules: Annotated[
        tuple[LoraModule, ...],
        Option(
            "Adapters",
            "LoRA adapter to serve under a model name of its own: a folder that PEFT has saved; repeatable. With "
            "several models, MODEL:NAME=PATH.",
            name="lora",
            syntax="name=path",
        ),
    ] = ()
    allow_lora_updates: bool = False
    """Prepares the model for adapters that are loaded later."""
    pack_linears: bool = True
    """Repacks the weights of linear layers for the CPU kernels. fp32 on a CPU only."""
    max_waiting: int = 256
    """Maximum number of jobs that wait for a slot."""
    max_batched_tokens: int | None = None
    """Maximum number of tokens per step, so that long prompts do not stall jobs. None: 512, 2048 on a GPU."""
    paged_cache: bool | None = None
    """Keeps keys and values in a pool of pages that all jobs share. None: on a GPU only. On a CPU, copying out of pages
    costs more than it saves."""
    kv_cache_share: int = 1
    """Number of engines that share the free memory: each takes its part of that fraction."""
    enable_prefix_caching: bool = True
    """Keeps the KV caches of finished jobs for later jobs of the same owner with the same prefix."""
    max_draft_seqs: int = 1
    """Maximum number of running jobs at which n-gram drafts are still used. 0: never draft from n-grams."""
