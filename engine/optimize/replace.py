"""How modules of a model take the place of others, and how far a result is from what it should be."""

from collections.abc import Callable

from torch import Tensor, nn


def replace(model: nn.Module, twin: Callable[[nn.Module], nn.Module | None]) -> int:
    """Put in the place of each module what ``twin`` makes of it, if it is anything; how many that were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            other = twin(child)
            if other is not None:
                setattr(parent, name, other)
                count += 1
    return count


def error(result: Tensor, truth: Tensor) -> float:
    """The relative error; of no truth at all, a large one."""
    return float((result - truth).norm() / truth.norm().clamp_min(1e-12))
