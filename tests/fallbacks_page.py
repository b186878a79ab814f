"""Prints `docs/reference/fallbacks.md`: `python -m tests.fallbacks_page > docs/reference/fallbacks.md`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from antiphon.engine.fallbacks import FALLBACKS
from tests.syntax import list_source_modules, parse_module

HEAD = """# Fallbacks of a start

This page is printed by `python -m tests.fallbacks_page` from the code; tests compare the two. At its start, the engine checks a model on the
machine that serves it, since results depend on the CPU, its libraries and the weights. A check that does not pass never ends in silence. The
fallback that is taken then is told

- by a warning in the log and a line in the banner, both with the reason; in JSON logs, by `fallbacks` of the line `model`;
- in `/v1/models`, by `fallbacks` of the model, and in `/ready`, by `fallbacks` of all models. Both have the kinds below;
- by the metric `antiphon:engine_fallback`, with the labels `model_name` and `kind`.

A model without any has none of these fields. An adapter that is loaded later, and a CUDA graph that is captured later, tell theirs in the log.

| kind | the check that passes | otherwise | compared in | told in |
|---|---|---|---|---|
"""

HEAD_OF_OTHERS = """
## Comparisons without a fallback

These compare bits or numbers, too, and need no fallback:

| comparison | why |
|---|---|
"""

OTHERS = {
    "engine/optimize/packing_plan.py:record_call": "a tensor with its own copy, to see that the model did not write to it: nothing is computed",
    "engine/optimize/stored_linears.py:_join_levels": "numbers of the files of a checkpoint",
    "engine/checkpoint/quantized/quantized_weight.py:order_by_group": "numbers of the files of a checkpoint",
    "engine/adapters/base_weights.py:_are_equal": "numbers of files; an adapter whose copy differs is refused",
    "engine/forward/experts/gates.py:_is_silu": "torch's SiLU with itself, or with another function",
    "engine/optimize/quantization_error.py:compare_logits": "it measures; `quantization` decides",
    "engine/load/experts/grouped.py:_measure_error": "it measures; `experts` decides",
}
"""Functions that compare and decide nothing that depends on a machine, each with the reason."""

DECIDING = {
    "engine/adapters/install.py:install_adapter_hooks": "adapter_pass",
    "engine/optimize/decoder_layer.py:_make_fused_layer": "decoder_layers",
    "engine/optimize/fuse.py:_make_fused_swiglu": "gated_layers",
    "engine/optimize/fuse.py:_replace_rotary": "rotary",
    "engine/optimize/linears.py:__init__": "single_rows",
    "engine/optimize/linears.py:_build_compiled_linear": "linear_kernel",
    "engine/optimize/packing_plan.py:compare": "linears",
    "engine/optimize/packing_plan.py:plan_packing": "linears",
    "engine/optimize/quantization_error.py:check_similarity": "quantization",
    "engine/optimize/rms_norm.py:_make_replacement": "norms",
    "engine/optimize/select.py:_interleaving_mismatch": "interleaving",
    "engine/optimize/validation.py:describe_error": "forward",
    "engine/optimize/verification.py:verify_kernel": "linears",
    "engine/forward/adapter_weights.py:_has_equal_places": "adapter_blocks",
    "engine/forward/cuda_graphs.py:_capture_and_verify": "cuda_graphs",
    "engine/forward/experts/gates.py:find_compiled_gate": "expert_layer",
    "engine/forward/experts/packed.py:_verify_layer": "expert_layer",
    "engine/forward/experts/packed.py:verify_products": "experts",
    "engine/kernels/library.py:verify_kernels": "kernels",
    "engine/load/experts/grouped.py:wrap_grouped_linears": "experts",
    "engine/load/experts/replacement.py:_check_input_scaling": "experts",
    "engine/load/experts/stored.py:check_stored_experts": "experts",
}
"""Functions that compare bits or numbers of computations, and the kind of fallback if the comparison fails."""

COMPARING_NAMES = re.compile(
    r"equal|allclose|relative_error|cosine_similarity|[A-Z_]*(RTOL|TOLERANCE|MAX_RELATIVE_ERROR|MIN_SIMILARITY|WARN_SIMILARITY)"
)
"""Names of functions that compare tensors, and of bounds."""


def find_reports() -> Iterator[tuple[str, Path]]:
    """Yields the kind and the module of each call of `report_fallback`."""
    for module in list_source_modules():
        for node in ast.walk(parse_module(module)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "report_fallback":
                kind = node.args[1]
                assert isinstance(kind, ast.Constant), f"{module}: the kind is no literal"
                yield str(kind.value), module


def find_comparisons() -> Iterator[str]:
    """Yields `module:function` of each function of the engine that compares tensors or reads a bound."""
    for module in list_source_modules():
        if module.parts[0] != "engine" or module.parts[1] == "remote":
            continue
        for function in ast.walk(parse_module(module)):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = (
                each.id if isinstance(each, ast.Name) else each.attr
                for each in ast.walk(function)
                if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load)
            )
            if any(COMPARING_NAMES.fullmatch(name) for name in names):
                yield f"{module}:{function.name}"


def render_page() -> str:
    """Returns the text of `docs/reference/fallbacks.md`."""
    modules: dict[str, dict[str, None]] = {kind: {} for kind in FALLBACKS}
    for kind, module in find_reports():
        modules[kind][f"`{module}`"] = None
    rows = []
    for kind, each in FALLBACKS.items():
        places = ", ".join(f"`{place}`" for place, decided in DECIDING.items() if decided == kind)
        rows.append(f"| `{kind}` | {each.check} | {each.otherwise} | {places} | {', '.join(modules[kind])} |\n")
    others = [f"| `{name}` | {reason} |\n" for name, reason in OTHERS.items()]
    return HEAD + "".join(rows) + HEAD_OF_OTHERS + "".join(others)


if __name__ == "__main__":
    sys.stdout.write(render_page())
