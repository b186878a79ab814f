"""Routers whose choice of experts has the same bits in any batch.

transformers' routers hold their weight themselves and multiply by it with `torch.nn.functional.linear`, whose last
bits depend on the number of rows. That changes the weights of experts, and could choose others.
"""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.gates import apply_to_whole_vectors
from antiphon.engine.optimize.linears import OneDnnLinear
from antiphon.engine.optimize.verification import UnusableKernelError

log = logging.getLogger(__name__)

PROBE_ROWS = 3

SHARED_GATE_NAME = "shared_expert_gate"
"""Layer with one output; its sigmoid weights the expert that all rows have."""

CLASSIFIER_NAME = "classifier"
"""Linear layer of a router that multiplies by the layer's weight itself."""

ELEMENTWISE_FUNCTIONS = {torch.sigmoid, Tensor.sigmoid, functional.sigmoid, functional.softplus}
"""Functions of routers whose last bits depend on an element's place in the tensor."""


class _WholeVectors(TorchFunctionMode):
    """Computes `ELEMENTWISE_FUNCTIONS` with the same bits in any batch while the mode is active."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in ELEMENTWISE_FUNCTIONS and not kwargs and len(args) == 1:
            return apply_to_whole_vectors(func, args[0])
        return func(*args, **(kwargs or {}))


class _ProductReplacement(_WholeVectors):
    """Also computes products with one weight by a kernel."""

    def __init__(self, weight: Tensor, kernel: OneDnnLinear) -> None:
        super().__init__()
        self._weight, self._kernel = weight, kernel
        self.calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and not kwargs and args[1].data_ptr() == self._weight.data_ptr():
            self.calls += 1
            product = self._kernel(args[0].contiguous())
            return product if len(args) < 3 or args[2] is None else product + args[2]
        return super().__torch_function__(func, types, args, kwargs)


class ExactRouter(nn.Module):
    """Runs a router whose product is computed row by row, in fp32. The weight is no parameter any more.

    `router` is a copy of the original, which stays as it is.
    """

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = copy.copy(router)
        self._weight = _read_weight(router)
        if router._parameters.get("weight") is None:
            holder = nn.Module()
            self.router._modules = {**router._modules, CLASSIFIER_NAME: holder}
        else:
            holder = self.router
            holder._parameters = {name: value for name, value in router._parameters.items() if name != "weight"}
        vars(holder)["weight"] = self._weight
        self._kernel = OneDnnLinear(self._weight, None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the router returns."""
        with _ProductReplacement(self._weight, self._kernel):
            return self.router(*args, **kwargs)

    def uses_kernel(self) -> bool:
        """Tells whether the router multiplies by its weight in the way that this class replaces."""
        with torch.inference_mode(), _ProductReplacement(self._weight, self._kernel) as mode:
            self.router(
                torch.ones(PROBE_ROWS, self._weight.shape[1]), *_make_other_arguments(self.router, len(self._weight))
            )
        return bool(mode.calls == 1)


def make_routers_exact(model: nn.Module, experts_type: type[nn.Module]) -> int:
    """Replaces the routers next to experts of this type, where this works. Returns the number replaced."""
    count = 0
    for parent, name, router in list(_find_routers(model, experts_type)):
        try:
            exact = ExactRouter(router)
        except (UnusableKernelError, RuntimeError) as failure:
            _report_own_product(router, one_line(failure))
            continue
        if _runs(exact):
            setattr(parent, name, exact)
            count += 1
        else:
            _report_own_product(router, "it multiplies in another way")
    return count


def _report_own_product(router: nn.Module, reason: str) -> None:
    message = "%s keeps its own product, whose last bits depend on the batch: %s"
    report_fallback(log, "routers", message, type(router).__name__, reason)


def make_shared_gates_exact(model: nn.Module, experts_type: type[nn.Module]) -> None:
    """Makes the gates exact by which blocks with experts of this type weight their shared expert."""
    for block in model.modules():
        has_experts = any(isinstance(child, experts_type) for child in block.children())
        if has_experts and SHARED_GATE_NAME in block._modules and "forward" not in vars(block):
            vars(block)["forward"] = functools.partial(_run_in_whole_vectors, type(block).forward, block)


def _run_in_whole_vectors(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _WholeVectors():
        return forward(*args, **kwargs)


def _runs(router: ExactRouter) -> bool:
    try:
        return router.uses_kernel()
    except Exception:  # noqa: BLE001  a router with other arguments keeps its own product
        return False


def _make_other_arguments(router: nn.Module, experts: int) -> list[Tensor]:
    """Returns the arguments of a router besides rows: token ids, or a correction of the experts' scores."""
    parameters = list(inspect.signature(router.forward).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    return [
        torch.zeros(PROBE_ROWS, dtype=torch.long) if name == "input_ids" else torch.zeros(experts) for name in names
    ]


def _read_weight(router: nn.Module) -> Tensor:
    """Returns the weight by which a router multiplies: its own, or that of its layer."""
    weight = router._parameters.get("weight")
    if weight is None:
        layer: Any = router._modules[CLASSIFIER_NAME]
        weight = layer.weight
    result: Tensor = weight.detach()
    return result


def _find_routers(model: nn.Module, experts_type: type[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yields the parent, the name and the module of routers that hold an fp32 weight, or a layer that does."""
    for parent in model.modules():
        children = dict(parent.named_children())
        if not any(isinstance(child, experts_type) for child in children.values()):
            continue
        for name, child in children.items():
            weight = child._parameters.get("weight")
            has_own = weight is not None and weight.ndim == 2 and type(child) not in {nn.Linear, nn.Embedding}
            has_layer = isinstance(child._modules.get(CLASSIFIER_NAME), nn.Linear)
            if (has_own or has_layer) and _read_weight(child).dtype == torch.float32:
                yield parent, name, child
