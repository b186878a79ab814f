"""Fallbacks of a start: what a model does more slowly, with more memory, or not at all, because a check did not pass.

`FALLBACKS` has all of them. Each is told to the operator in the log and at the end of the start, to clients in
`/v1/models`, and in `/ready` and the metrics.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class Fallback(msgspec.Struct, frozen=True):
    """A fallback that a start has taken: its kind, and for the operator the reason in one line."""

    kind: str
    reason: str


class FallbackKind(msgspec.Struct, frozen=True):
    """The check that decides, and what happens if it does not pass."""

    check: str
    otherwise: str


FALLBACKS = {
    "adapter": FallbackKind("the files of an adapter that may be missing fit the model", "the adapter is not served"),
    "adapter_base": FallbackKind(
        "an adapter names this base model, and its copies of weights can be compared", "it is served all the same"
    ),
    "adapter_blocks": FallbackKind(
        "torch gives a row of an adapter's product the same bits in every place of a block of 8 rows",
        "each row is a product of its own: adapters are slower",
    ),
    "adapter_pass": FallbackKind(
        "no layer is fused, or a pass that runs fused layers in parts gives the base model's logits the same bits",
        "rows with adapters run in a pass of their own: a step with both kinds takes longer",
    ),
    "context": FallbackKind(
        "the context fits the model and the KV cache", "the context is cut, and longer prompts get an error"
    ),
    "cuda_graphs": FallbackKind(
        "the logits of a captured graph are within 1% of the eager step's", "steps run eagerly: decoding is slower"
    ),
    "decoder_layers": FallbackKind(
        "a fused decoder layer is within 1e-5 of the model's own", "the layer runs in parts: small models are slower"
    ),
    "deterministic": FallbackKind(
        "with `--deterministic`, all linear layers are packed", "each pass computes one token: prompts are slower"
    ),
    "expert_layer": FallbackKind(
        "the compiled layer of experts knows their gate, is within 1% of its parts, and has the same bits in any batch",
        "experts run in parts: slower",
    ),
    "experts": FallbackKind(
        "fused experts compute what their class says, within 1e-4, and their packed products have the same bits in any "
        "batch",
        "they stay as they are, or are loaded as a whole: slower, and more memory",
    ),
    "float16_cache": FallbackKind("the model's attention reads keys in float16", "the KV cache takes twice the memory"),
    "forward": FallbackKind(
        "the logits of the packed pass are within 1% (10% in 16 bits) of those of the model's own code",
        "sequences run one at a time, prompts as a whole; the model takes no pictures",
    ),
    "gated_layers": FallbackKind(
        "a fused gated layer is within 1e-5 of the model's own (1% before int8 weights)", "it runs in parts: slower"
    ),
    "generation_settings": FallbackKind(
        "all settings of generation_config.json are supported", "those that are not are ignored"
    ),
    "interleaving": FallbackKind(
        "sequences that take turns get the logits, within 1%, that each gets alone", "one request at a time is served"
    ),
    "kernels": FallbackKind(
        "a C compiler builds the kernels, and their results are within 1e-5 of torch's",
        "torch computes everything: slower, and int8 in other forms",
    ),
    "linear_kernel": FallbackKind(
        "a compiled linear layer is within 1e-5 of a product in fp32 (5% in int8, and of the rounded weight in int4), "
        "with the same bits in any batch",
        "torch computes the layer: slower",
    ),
    "linears": FallbackKind(
        "a dry run shows that a linear layer is only called, and its packed form is within its bound, with the same "
        "bits in any batch",
        "the layer stays as it is: slower, not quantized, and a row's last bits depend on its batch",
    ),
    "memory_probe": FallbackKind(
        "a sequence of a pass without packing runs", "the memory of a sequence is not limited"
    ),
    "norms": FallbackKind(
        "a fused norm is within 1e-5 of the model's own",
        "the norm stays as it is: slower; decoder layers are not fused",
    ),
    "pack_cache": FallbackKind(
        "the cache folder can be written, and the kept weights are whole", "weights are packed at each start"
    ),
    "paged_cache": FallbackKind(
        "the logits with a paged cache are within the bound of `forward`", "caches are contiguous: prefixes are copied"
    ),
    "pictures": FallbackKind(
        "text calls no part of the vision tower, and the model's family and pass take pictures",
        "the model takes no pictures: a request with one gets a 400 with the reason, or a placeholder",
    ),
    "prefix_disk": FallbackKind(
        "the folder, the model's caches and its files allow pages of prefixes", "prefixes are not kept on disk"
    ),
    "quantization": FallbackKind(
        "the quantized logits have a cosine similarity of at least 0.95 to those in fp32 (below 0.8 the start fails)",
        "the model is served; its output may be worse",
    ),
    "rotary": FallbackKind("the fused rotary embedding is within 1e-5 of the model's own", "it runs in parts: slower"),
    "routers": FallbackKind(
        "the product of a router can be replaced by one whose bits are the same in any batch",
        "the router keeps its own: the last bits of experts' weights depend on the batch",
    ),
    "single_rows": FallbackKind(
        "oneDNN gives a single row in fp32 the bits that it has in a batch", "a single row is computed twice: slower"
    ),
    "whole_load": FallbackKind("all weights can stay in their files until they are used", "loading takes more memory"),
}
"""Fallbacks by their kinds."""


def list_kinds(fallbacks: Iterable[Fallback]) -> list[str]:
    """Returns the kinds of fallbacks, each once, in their order."""
    return list(dict.fromkeys(each.kind for each in fallbacks))


_told: ContextVar[dict[Fallback, None] | None] = ContextVar("told_fallbacks", default=None)


def report_fallback(log: logging.Logger, kind: str, message: str, *args: object) -> None:
    """Warns about a fallback of `FALLBACKS`, and keeps it for the start that `collect_fallbacks` surrounds.

    A message is logged once in a start.
    """
    fallback, told = Fallback(kind, message % args), _told.get()
    if told is None or fallback not in told:
        log.warning("%s", fallback.reason)
    if told is not None:
        told[fallback] = None


@contextmanager
def collect_fallbacks() -> Iterator[dict[Fallback, None]]:
    """Yields the fallbacks that are reported inside the `with` block, in their order."""
    told: dict[Fallback, None] = {}
    token = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(token)
