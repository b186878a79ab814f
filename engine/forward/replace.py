"""Replaces modules of a model, and measures the error of a replacement."""

from collections.abc import Callable

from torch import Tensor, nn

SAME_FORMULA_RTOL = 1e-2
"""Error up to which two functions are one formula with other roundings: another formula differs by more."""


def replace_modules(model: nn.Module, make_replacement: Callable[[nn.Module], nn.Module | None]) -> int:
    """Replaces each submodule for which `make_replacement` returns a module. Returns the number replaced."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = make_replacement(child)
            if replacement is not None:
                setattr(parent, name, replacement)
                count += 1
    return count


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Returns the relative L2 error of `result`; a large number if `expected` is zero."""
    return float((result - expected).norm() / expected.norm().clamp_min(1e-12))
