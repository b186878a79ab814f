"""Replaces RMS norms by one kernel call, or by four torch operations instead of eight, if the results are equal."""

import logging

import torch
from torch import Tensor, nn

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.replace import SAME_FORMULA_RTOL, relative_error, replace_modules
from antiphon.engine.kernels.bindings import Kernels

log = logging.getLogger(__name__)

NORM_TOLERANCE = 1e-5
"""Absolute and relative tolerance of the comparison. The results compared are near 1."""


class FusedRMSNorm(nn.Module):
    """Replaces a model's own RMS norm over the last dimension.

    Without `kernels`, x · w / √(mean(x²) + ε) is computed as x · w√n / √(|x|² + nε): torch computes the vector norm
    |x| and the root (`hypot`) in one call each.
    """

    _scale: Tensor
    _eps_term: Tensor

    def __init__(self, weight: nn.Parameter, eps: float, kernels: Kernels | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = self.eps = eps
        count = len(weight)
        self._kernels = kernels if kernels is not None and kernels.is_row_aligned(count) else None
        self.register_buffer("_scale", weight.detach() * count**0.5, persistent=False)
        self.register_buffer("_eps_term", weight.new_tensor((count * eps) ** 0.5), persistent=False)

    @property
    def uses_kernels(self) -> bool:
        """True if the compiled kernels compute the norm."""
        return self._kernels is not None

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes each row: (…, n) → (…, n)."""
        if self._kernels is not None and x.dtype is torch.float32:
            return self._kernels.rms_norm(x, self.weight, self.eps)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.div(x, torch.hypot(norm, self._eps_term)).mul_(self._scale)


@torch.inference_mode()
def replace_norms(model: nn.Module, kernels: Kernels | None = None) -> int:
    """Replaces every RMS norm whose output is unchanged. Returns the number replaced."""
    return replace_modules(model, lambda norm: _make_replacement(norm, kernels))


def _make_replacement(norm: nn.Module, kernels: Kernels | None) -> FusedRMSNorm | None:
    """Returns the norm in fewer calls; None if the module is not a plain RMS norm."""
    weight = norm._parameters.get("weight")
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    is_bare = list(norm._parameters) == ["weight"] and not norm._modules and not norm._buffers
    if not type(norm).__name__.endswith("RMSNorm") or not is_bare or weight is None or not isinstance(eps, float):
        return None
    if weight.ndim != 1 or weight.dtype != torch.float32 or norm._forward_hooks or norm._forward_pre_hooks:
        return None
    fused = FusedRMSNorm(weight, eps, kernels)
    x = torch.linspace(-3.0, 4.0, 3 * len(weight), device=weight.device).sin().view(1, 3, -1)
    try:
        results = [(norm(x * size), fused(x * size)) for size in (1.0, 1e-3, 30.0)]
        if all(torch.allclose(*pair, rtol=NORM_TOLERANCE, atol=NORM_TOLERANCE) for pair in results):
            return fused
        error = max(relative_error(result, expected) for expected, result in results)
    except Exception:  # noqa: BLE001  a norm that needs more than its input stays unchanged
        return None
    if error <= SAME_FORMULA_RTOL:
        report_fallback(log, "norms", "%s is not replaced: its results differ by %.2g", type(norm).__name__, error)
    return None
