"""The selective scan of Mamba's first version, from a given state.

transformers' mixers of this kind begin each scan over several tokens with a zero state, because the kernels that they
can use take no other. `carry_scan_state` replaces the function that they call by one that begins with the state
of `set_scan_state`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SCAN_FUNCTION = "mamba_selective_scan"
"""Name of the function in modules of transformers."""

_INITIAL_STATES: ContextVar[Iterator[Tensor] | None] = ContextVar("_INITIAL_STATES", default=None)


def carry_scan_state(mixer: nn.Module) -> bool:
    """Makes the mixer's scans begin with the given state. Returns False if the mixer carries its state by itself."""
    module: Any = sys.modules[type(mixer).__module__]
    original = getattr(module, SCAN_FUNCTION, None)
    if original is None:
        return False
    if not hasattr(original, "carries_state"):
        setattr(module, SCAN_FUNCTION, _wrap_scan(original))
    return True


@contextmanager
def set_scan_state(state: Tensor | None) -> Iterator[None]:
    """Sets the state (1, channels, size) with which the next scan begins, or (1, heads, …) for one scan per head."""
    if state is None:
        yield
        return
    token = _INITIAL_STATES.set(iter(state.unbind(1) if state.ndim == 4 else [state]))
    try:
        yield
    finally:
        _INITIAL_STATES.reset(token)


def _wrap_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def scan(*args: Any, **kwargs: Any) -> Any:
        states = _INITIAL_STATES.get()
        return original(*args, **kwargs) if states is None else scan_from_state(next(states), *args, **kwargs)

    scan.carries_state = True  # type: ignore[attr-defined]
    return scan


def scan_from_state(  # noqa: PLR0913, PLR0917  the parameters are transformers'
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Does what transformers' `mamba_selective_scan` does, but begins with `state` (1, channels, size).

    Hidden states and `dt` are (1, channels, n), `B` and `C` (1, size, n). Returns the output (1, channels, n)
    and, if requested, the state after the last token.
    """
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = functional.softplus(dt)
    decay = torch.exp(A[None, :, None, :] * dt[..., None])
    added = dt[..., None] * B.transpose(1, 2)[:, None].float() * hidden_states[..., None].float()
    outputs = []
    for index in range(hidden_states.shape[2]):
        state = decay[:, :, index] * state + added[:, :, index]
        outputs.append(torch.matmul(state.to(hidden_states.dtype), C[:, :, index, None])[..., 0])
    output = torch.stack(outputs, dim=-1)
    if D is not None:
        output = output + hidden_states * D[None, :, None]
    if z is not None:
        output = output * functional.silu(z)
    return (output, state) if return_last_state else output
