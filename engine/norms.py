"""RMS norms in one call instead of six, where that is proved to give the same numbers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

SAME = 1e-5
"""Difference up to which results count as equal; the inputs they are compared on have results near 1."""


class RMSNorm(nn.Module):
    """In the place of a model's own RMS norm over the last dimension."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, n) → (…, n)."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


@torch.inference_mode()
def replace_norms(model: nn.Module) -> int:
    """Replace the norms whose results stay what they are; how many that were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin(child)
            if twin is not None:
                setattr(parent, name, twin)
                count += 1
    return count


def _twin(norm: nn.Module) -> RMSNorm | None:
    """The same norm as one call; None if it is no plain RMS norm."""
    weight = norm._parameters.get("weight")
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    lone = list(norm._parameters) == ["weight"] and not norm._modules and not norm._buffers
    if not type(norm).__name__.endswith("RMSNorm") or not lone or weight is None or not isinstance(eps, float):
        return None
    if weight.ndim != 1 or weight.dtype != torch.float32 or norm._forward_hooks or norm._forward_pre_hooks:
        return None
    twin = RMSNorm(weight, eps)
    x = torch.linspace(-3.0, 4.0, 3 * len(weight), device=weight.device).sin().view(1, 3, -1)
    try:
        alike = all(torch.allclose(norm(x * size), twin(x * size), rtol=SAME, atol=SAME) for size in (1.0, 1e-3, 30.0))
    except Exception:  # noqa: BLE001  a norm that wants more than its input stays as it is
        return None
    return twin if alike else None
