"""MiniMax's lightning attention over several tokens, from a given state.

transformers' layer computes a prompt in blocks from a zero state, and later tokens one by one. With weights in bf16 the
two differ, since its decay factors are rounded, so that only blocks give a prompt's own logits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _StateAsZeros(TorchFunctionMode):
    """Makes `torch.zeros` return the state where a tensor of its shape is asked for."""

    def __init__(self, state: Tensor) -> None:
        super().__init__()
        self._state = state

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return self._state if func is torch.zeros and result.shape == self._state.shape else result


@contextmanager
def begin_with_state(state: Tensor | None) -> Iterator[None]:
    """Makes a layer that begins with zeros begin with this state, if one is given."""
    if state is None:
        yield
        return
    with _StateAsZeros(state):
        yield
