"""How modules of a model take the place of others, and how far a result is from what it should be."""

from collections.abc import Callable

from torch import Tensor, nn


def replace_modules(model: nn.Module, make_replacement: Callable[[nn.Module], nn.Module | None]) -> int:
    """Put in the place of each module what ``twin`` makes of it, if it is anything; how many that were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            other = make_replacement(child)
            if other is not None:
                setattr(parent, name, other)
                count += 1
    return count


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The relative error; of no truth at all, a large one."""
    return float((result - expected).norm() / expected.norm().clamp_min(1e-12))
