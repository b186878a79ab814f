"""From a model folder and a person's options to a core that is ready to step.

The options are one message, so that a process can be told by it what to build.
"""

import logging
from pathlib import Path
from typing import Literal

import msgspec
import torch
from transformers import PreTrainedModel

from antiphon.engine.cache.paged import PAGE
from antiphon.engine.checkpoint.files import Folder, LoadError
from antiphon.engine.hardware import cpu, threads
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.library import kernels
from antiphon.engine.model.forward import Forward
from antiphon.engine.model.loader import describe, free_memory, load_model
from antiphon.engine.model.select import choose_forward, sample
from antiphon.engine.model.varlen import PackedForward
from antiphon.engine.optimize.decoder_layer import fuse_layers
from antiphon.engine.optimize.fuse import fuse
from antiphon.engine.optimize.pack_linears import Packing, Quantize, cosine, pack
from antiphon.engine.optimize.rms_norm import replace_norms
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.grammar import opener

log = logging.getLogger(__name__)

KV_SHARE = 0.7
"""How much of the memory that is free after loading the cache may take, unless ``Options.kv_gib`` says otherwise."""

BLOCK = 16
"""Tokens of a prompt whose attention torch computes at once in int8. How many decides about the last bits, which may
move an activation to the next of its few levels. Of fp32 they stay the last bits. More make long steps."""

KVType = Literal["float32", "float16"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a model; what is None is chosen from the hardware and the model."""

    device: str | None = None
    dtype: str | None = None
    """None: float32 on a CPU, bfloat16 on a GPU."""
    threads: int | None = None
    """CPU threads of torch; None: the physical cores that this process may use."""
    pack: bool = True
    """Lay the weights of linear layers out for the CPU's kernels; fp32 on a CPU only."""
    compile: bool = True
    """Compile kernels with the machine's C compiler, if it has one; fp32 on a CPU only."""
    quantize: Quantize | None = None
    """``int8``: linear layers with 8 bits for each weight and activation; fp32 on a CPU only."""
    deterministic: bool = False
    """The same job with the same seed gives the same tokens alone and among any others."""
    context: int | None = None
    """Tokens; at most the model's own."""
    slots: int = 64
    """Jobs that run at once."""
    queue: int = 256
    """Jobs that wait for a slot."""
    chunk: int = 512
    """Tokens per step, so that a long prompt does not hold up the others."""
    paged: bool | None = None
    """Keys and values in pages that all jobs share; None: on a GPU. On a CPU, copying out of them takes longest."""
    kv_dtype: KVType | None = None
    """What keys and values are kept in; None: float16 beside int8 layers where compiled kernels read it, else as the
    model computes."""
    kv_gib: float | None = None
    """Memory for keys and values, those that are kept for later among them."""
    reuse: bool = True
    """Keep the keys and values of ended jobs for those of the same owner that begin alike."""
    speculate: int = 1
    """While at most so many jobs run, tokens are drafted from what the text has said before; 0: never."""


def build_core(path: Path, options: Options) -> Core:
    """Load a folder and make its core. Raises :class:`engine.checkpoint.files.LoadError`."""
    torch.set_num_threads(options.threads or threads())
    model, folder = load_model(path, device=options.device, dtype=options.dtype)
    return core_of(model, folder, options, tune=True)


def core_of(
    model: PreTrainedModel, folder: Folder | None = None, options: Options | None = None, *, tune: bool = False
) -> Core:
    """The core of a model that is already in memory; without ``folder`` it has no defaults of its own.

    ``tune``: the model's layers may be replaced by faster ones.
    """
    options = options or Options()
    log.info("trying the model")
    cuda = model.device.type == "cuda"
    if cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew, for up to half a second, for each shape it meets
    compiled = kernels() if options.compile and tune and model.device.type == "cpu" else None
    forward = choose_forward(model, paged=cuda if options.paged is None else options.paged, kernels=compiled)
    info = describe(model, folder)
    context = min(options.context or info.context, info.context)
    packing = _tune(model, forward, options, compiled) if tune else Packing()
    if options.deterministic and isinstance(forward, PackedForward):
        forward.determine(independent=packing.whole)
        if not packing.whole:
            log.warning("deterministic: one token at a time, since not all linear layers are packed")
    elif options.quantize and packing.whole and isinstance(forward, PackedForward):
        forward.determine(independent=True, grain=1 if forward.compiled else BLOCK)
    room = _room(forward, str(model.device), options) if isinstance(forward, PackedForward) else None
    if room is not None and room < context:
        if room < 2:
            raise LoadError("no memory is left for keys and values; free some, or choose a smaller model")
        log.warning("memory for %d tokens of context; the model could take %d", room, context)
        context = room
    if isinstance(forward, PackedForward) and forward.paged:
        forward.provide(room or options.slots * context, options.slots)
        if cuda and not options.deterministic:
            log.info("recording steps")
            forward.record(options.slots)
    words = [info.description, packing.line, _machine(model), "deterministic" if options.deterministic else ""]
    info = msgspec.structs.replace(info, context=context, description="; ".join(word for word in words if word))
    # Where attention goes token by token, a draft costs what it saves.
    lonely = options.deterministic and not packing.whole
    return Core(
        forward,
        info,
        slots=options.slots,
        queue=options.queue,
        chunk=options.chunk,
        room=room,
        speculate=0 if lonely else options.speculate,
        reuse=options.reuse,
        kernels=compiled,
        guides=opener(folder.path, info.vocab, info.eos_ids) if folder else lambda: None,
    )


def _tune(model: PreTrainedModel, forward: Forward, options: Options, compiled: Kernels | None) -> Packing:
    """Faster norms and linear layers, where they are proved right, and caches in fp16 where they are wanted."""
    replace_norms(model, compiled)
    packing = Packing()
    if options.pack or options.quantize is not None:
        log.info("packing weights")
        packing = pack(model, lambda: sample(forward, model), options.quantize, compiled)
        if compiled is not None:
            fuse(model, compiled)
            fuse_layers(model, compiled)
    if options.quantize is not None and not packing.line:
        raise LoadError("this model cannot be quantized here (see the log); leave quantize out")
    words = [packing.line, *_halve(forward, options)]
    if options.quantize is not None and packing.truth is not None:
        words.append(f"cosine of the logits with fp32 {cosine(sample(forward, model), packing.truth):.5f}")
    return packing._replace(line=", ".join(word for word in words if word))


def _halve(forward: Forward, options: Options) -> list[str]:
    """Keep keys and values in fp16, if that is wanted or stands to reason; what was done, in a few words."""
    wanted = options.kv_dtype or ("float16" if options.quantize else "float32")
    if wanted == "float32":
        return []
    if isinstance(forward, PackedForward) and forward.halve():
        return ["keys and values in float16"]
    if options.kv_dtype:
        raise LoadError("keys and values cannot be kept in float16 here, without compiled kernels; leave kv_dtype out")
    return []


def _machine(model: PreTrainedModel) -> str:
    """What was chosen for the CPU, in a few words."""
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count > 1 else ''} ({cpu()})" if model.device.type == "cpu" else ""


def _room(forward: PackedForward, device: str, options: Options) -> int | None:
    """How many tokens the cache may hold, in whole pages if it is paged; None: nobody knows what memory there is."""
    free = free_memory(device)
    budget = options.kv_gib * 2**30 if options.kv_gib is not None else None if free is None else free * KV_SHARE
    if budget is None or not forward.bytes_per_token:
        return None
    room = int(budget / forward.bytes_per_token)
    return room - room % PAGE if forward.paged else room
