"""The kernels of ``kernels.c`` and ``products.c`` on torch's tensors: proved against torch before anybody gets them.

Where there is no compiler, or something is not as it should be, there are none, and what they do is done by torch, in
more steps. They are for fp32 on a CPU. Like there, rows are the last dimension; each is computed in one order, so that
its bits depend on nothing else.
"""

import ctypes
import functools
import logging
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.compiler import CompilationError, library
from engine.panels import MOST_INPUTS, Panels, panels

log = logging.getLogger(__name__)

SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "products.c"))
MOST_GROUPS = 64
"""Queries that may share a head of keys."""

BLOCK = 128
"""Scores of which :meth:`Kernels.weigh` tells the sum of weights."""

HEIGHT = 16
"""Rows of a tile in ``products.c``."""

PIECES = ((0, 1), (1, 3), (3, 10), (10, 53))
"""Rows that a product is tried with: each way that there is for few of them, and for many."""

SAME = 1e-5
"""Difference from torch's results up to which a kernel counts as right; those it is tried on are near 1."""


class Kernels:
    """The loaded library. Raises :class:`CompilationError` if it computes something else than torch."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        loaded.antiphon_lanes.restype = loaded.antiphon_levels.restype = ctypes.c_int64
        self._lanes, self._levels = int(loaded.antiphon_lanes()), int(loaded.antiphon_levels())
        self._attend, self._norm, self._gate, self._turn, self._weigh, self._multiply = (
            _function(loaded, name, *kinds)
            for name, *kinds in (
                ("attend", ctypes.c_float),
                ("norm", ctypes.c_float),
                ("gate",),
                ("turn",),
                ("weigh",),
                ("multiply",),
            )
        )
        self._prove()

    def fit(self, size: int) -> bool:
        """Whether they know rows of so many numbers."""
        return size % self._lanes == 0

    def attendable(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> bool:
        """Whether :meth:`attend` can do this."""
        plain = query.dtype is key.dtype is value.dtype is torch.float32
        known = plain and self.fit(query.shape[3]) and self.fit(value.shape[3])
        if sinks is not None and not (sinks.dtype is torch.float32 and sinks.is_contiguous()):
            return False
        groups = query.shape[1] // key.shape[1]
        return known and groups <= MOST_GROUPS and query.stride(3) == key.stride(3) == value.stride(3) == 1

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        table: Sequence[int],
        out: Tensor,
        scale: float,
        sinks: Tensor | None = None,
    ) -> None:
        """Single queries of (1, heads, n, dim), each over the keys of its own sequence, into (1, n, heads, value_dim).

        ``table`` has eight numbers for each: its place in the row; the addresses of the sequence's keys and values
        (kv_heads, capacity, …), and their steps from head to head; the first key it sees, and after the last, which is
        its own; whether its key and value, in ``key`` and ``value`` (1, kv_heads, n, …), are still to be written there.
        """
        numbers = array("q", table)
        kv_heads = key.shape[1]
        words = array(
            "q",
            (
                len(numbers) // 8,
                kv_heads,
                query.shape[1] // kv_heads,
                query.shape[3],
                value.shape[3],
                _threads(),
                *_layout(query),
                *_layout(key),
                *_layout(value),
                0 if sinks is None else sinks.data_ptr(),
                out.data_ptr(),
                numbers.buffer_info()[0],
            ),
        )
        self._attend(words.buffer_info()[0], scale)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Each row x becomes x / √(mean(x²) + eps) · weight."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        x, words = _table(x, out, weight)
        self._norm(words.buffer_info()[0], eps)
        return out

    def gate(self, x: Tensor) -> Tensor:
        """The first half of each row through SiLU, times the second; x (…, 2n) is contiguous."""
        *shape, double = x.shape
        size = double // 2
        out = x.new_empty((*shape, size))
        words = array("q", (x.data_ptr(), x.numel() // double, size, 1, double, 0, out.data_ptr(), 0, 0, _threads()))
        self._gate(words.buffer_info()[0])
        return out

    def turnable(self, x: Tensor, cosines: Tensor, sines: Tensor) -> bool:
        """Whether :meth:`turn` can do this."""
        if x.dim() != 4 or len(x) != 1 or x.shape[3] % 2 or x.stride(3) != 1 or not self.fit(x.shape[3] // 2):
            return False
        plain = x.dtype is cosines.dtype is sines.dtype is torch.float32 and x.is_cpu
        alike = cosines.shape == sines.shape == (1, *x.shape[2:])
        return plain and alike and cosines.is_contiguous() and sines.is_contiguous()

    def turn(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotary positions of (1, heads, n, dim), whose last steps are 1, by two contiguous tables (1, n, dim).

        As transformers does it: each half of a row is turned by the other.
        """
        _, heads, length, size = x.shape
        out = x.new_empty((1, length, heads, size))
        _, inner_step, outer_step, _ = x.stride()
        tables = (cosines.data_ptr(), sines.data_ptr())
        rows = (heads * length, size, heads, outer_step, inner_step)
        words = array("q", (x.data_ptr(), *rows, out.data_ptr(), *tables, _threads()))
        self._turn(words.buffer_info()[0])
        return out.transpose(1, 2)

    def weigh(self, x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        """Weights e^((x - the row's largest) · by) of (rows, n), added up in blocks of :data:`BLOCK`, and the largest.

        (rows, blocks), (rows, 1). ``by`` has a number for each row. Of a row that holds no number the largest is none.
        """
        count, size = x.shape
        out = torch.empty(count, -(-size // BLOCK) + 1)
        x, words = _table(x, out, by)
        self._weigh(words.buffer_info()[0])
        return out[:, :-1], out[:, -1:]

    def multipliable(self, weight: Tensor) -> bool:
        """Whether :meth:`multiply` can do this; it knows not every CPU."""
        return self._levels > 0 and weight.dtype is torch.float32 and 0 < weight.shape[1] <= MOST_INPUTS

    def panels(self, weight: Tensor) -> Panels:
        """A weight (outputs, inputs) in int8, laid out for :meth:`multiply`."""
        return panels(weight, self._lanes, self._levels + 1)

    def multiply(self, x: Tensor, matrix: Panels, bias: Tensor | None = None, *, gated: bool = False) -> Tensor:
        """(…, inputs) → (…, outputs). Each row is rounded to levels of its own largest magnitude.

        A row of zeros gives the bias; one that holds what is no finite number gives none. ``gated``: x (…, 2 inputs)
        goes through :meth:`gate` first, and is written to; inputs :meth:`fit`.
        """
        x = x.contiguous()
        count = x.numel() // x.shape[-1]
        out = x.new_empty((*x.shape[:-1], matrix.outputs))
        tiles = -(-count // HEIGHT)
        rows = torch.empty(tiles * HEIGHT * matrix.weights.shape[1] * 4, dtype=torch.uint8)
        magnitudes = torch.empty(count)
        words = array(
            "q",
            (
                x.data_ptr(),
                count,
                matrix.inputs,
                matrix.outputs,
                matrix.weights.data_ptr(),
                matrix.scales.data_ptr(),
                matrix.zeros.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                out.data_ptr(),
                rows.data_ptr(),
                magnitudes.data_ptr(),
                gated,
                _threads(),
            ),
        )
        self._multiply(words.buffer_info()[0])
        return out

    def _prove(self) -> None:
        """Raises :class:`CompilationError` unless each agrees with torch."""
        generator = torch.Generator().manual_seed(1)
        x, weight = (torch.randn(size, generator=generator) for size in ((3, 5, 64), (64,)))
        normed = functional.rms_norm(x, (64,), weight, 1e-6)
        scores = x.view(3, 320)[:, :317]
        wrong = [
            name
            for name, one, two in (
                ("norm", self.norm(x, weight, 1e-6), normed),
                ("gate", self.gate(x), functional.silu(x[..., :32]) * x[..., 32:]),
                ("turn", *self._turned(x)),
                ("weigh", self.weigh(scores, torch.ones(3))[0], _weights(scores)),
                ("attend", *self._attentions(generator)),
                ("multiply", *self._multiplied(generator)),
                ("multiply", *self._gated(x)),
            )
            if not torch.allclose(one, two, rtol=SAME, atol=SAME)
        ]
        if wrong:
            raise CompilationError(f"the library computes another {', '.join(wrong)}")

    def _turned(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Five tokens of three heads turned by the kernel, and by torch."""
        angles = torch.outer(torch.arange(5.0), torch.arange(64.0))[None]
        half = torch.cat([-x[..., 32:], x[..., :32]], -1)
        return self.turn(x[None], angles.cos(), angles.sin()), (x * angles.cos() + half * angles.sin())[None]

    def _multiplied(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Whole numbers, which 8 bits hold, by the kernel and by torch."""
        x = torch.randint(-self._levels, self._levels + 1, (53, 100), generator=generator).float()
        weight = torch.randint(-127, 128, (40, 100), generator=generator).float()
        x[:, 0], weight[:, 1] = self._levels, 127
        x *= 2.0 ** (torch.arange(len(x)) % 5)[:, None]
        truth = functional.linear(x, weight)
        if not self._levels:
            return truth, truth
        matrix = self.panels(weight)
        pieces = [self.multiply(x[first:end], matrix) for first, end in PIECES]
        return torch.cat(pieces), truth

    def _gated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The product of what comes through a gate, by both at once and one after the other."""
        if not self._levels:
            return x, x
        matrix, inner = self.panels(x[0, :, :32]), self.gate(x)
        return self.multiply(x.clone(), matrix, gated=True), self.multiply(inner, matrix)

    def _attentions(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A query of each of two sequences by the kernel, and by torch."""
        query, key, value = (torch.randn((1, heads, 2, 32), generator=generator) for heads in (6, 2, 2))
        caches = [torch.randn((2, 1, 2, length, 32), generator=generator) for length in (1, 140)]
        truth, table = [], []
        for token, (keys, values) in enumerate(caches):
            table += [token, keys.data_ptr(), values.data_ptr(), *(2 * [keys.stride(1)]), 0, keys.shape[2], 1]
            k = torch.cat([keys[:, :, :-1], key[:, :, token, None]], 2)
            v = torch.cat([values[:, :, :-1], value[:, :, token, None]], 2)
            rows = query[:, :, token].view(1, 2, 3, 32)
            truth.append(functional.scaled_dot_product_attention(rows, k, v).reshape(1, 1, 6, 32))
        out = torch.empty((1, 2, 6, 32))
        self.attend(query, key, value, table, out, 32**-0.5)
        return out, torch.cat(truth, 1)


@functools.cache
def kernels() -> Kernels | None:
    """Those of this process; None if there cannot be any, which is said once."""
    try:
        return Kernels(library(*SOURCES))
    except (CompilationError, AttributeError) as failure:  # the latter if it lacks one of them
        log.warning("no compiled kernels, which costs speed: %s", failure)
    return None


def _function(loaded: ctypes.CDLL, name: str, *kinds: Any) -> Any:
    """One that takes the address of its words, and what else is said."""
    function = getattr(loaded, f"antiphon_{name}")
    function.argtypes, function.restype = [ctypes.c_void_p, *kinds], None
    return function


_threads = torch.get_num_threads


def _layout(x: Tensor) -> tuple[int, int, int]:
    """Where (1, heads, n, dim) begins, and the steps to the next token and to the next head."""
    _, head, token, _ = x.stride()
    return x.data_ptr(), token, head


def _table(x: Tensor, out: Tensor, by: Tensor) -> tuple[Tensor, "array[int]"]:
    """``struct rows`` about x, and x, which must live until it was read: two steps must lead from row to row."""
    size = x.shape[-1]
    inner, outer_step, inner_step = 1, size, 0
    if not x.is_contiguous():
        if x.dim() == 4 and len(x) == 1 and x.stride(3) == 1:
            inner, (_, outer_step, inner_step, _) = x.shape[2], x.stride()
        else:
            x = x.contiguous()
    count = x.numel() // size
    threads = _threads()
    return x, array(
        "q", (x.data_ptr(), count, size, inner, outer_step, inner_step, out.data_ptr(), by.data_ptr(), 0, threads)
    )


def _weights(x: Tensor) -> Tensor:
    """What :meth:`Kernels.weigh` is to say, by torch."""
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return torch.stack([weights[:, first : first + BLOCK].sum(-1) for first in range(0, x.shape[1], BLOCK)], -1)
