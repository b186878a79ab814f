"""CUDA graphs of pure decode steps, captured once per batch size and replayed.

A GPU runs a small kernel in less time than the CPU needs to launch it, and a step launches hundreds. A graph is a fixed
sequence of kernels on fixed memory. Batches are therefore padded to a few sizes, and the inputs of each step are copied
into tensors that the graph reads. A graph is compared with the eager step before it is used; if a model cannot be
captured, its steps run eagerly.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.cache.paged import NULL_PAGE, PAGE_TOKENS, PagedKVCache
from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.decode_batch import (
    MAX_TOKENS_READ,
    MIN_TABLE_COLUMNS,
    bucket_by_length,
    bucket_size,
    build_tables,
    columns_needed,
)

log = logging.getLogger(__name__)

MAX_PADDING_RATIO = 3
"""Limit on the pages read by a padded graph, relative to eager batches grouped by length; above it no graph is used."""

GRAPH_RTOL = 1e-2
"""Largest relative error of a graph's logits, compared with the eager step, at which the graph is used."""

DecodeStep = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Decode step: ids and positions (1, rows), a table of pages (rows, columns) → logits (rows, vocabulary)."""

GraphCapture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Captures a step. Returns the tensor that holds its result, and a function that computes it again."""


class _CapturedGraph(NamedTuple):
    """Input tensors of a captured step, its result, and the function that computes the result from the inputs."""

    ids: Tensor
    positions: Tensor
    table: Tensor
    logits: Tensor
    replay: Callable[[], None]


class CudaGraphs:
    """Graphs of `step` on a device. Those of short sequences are captured at the start, others when first needed."""

    def __init__(self, step: DecodeStep, capture: GraphCapture, device: torch.device) -> None:
        self._step = step
        self._capture = capture
        self._device = device
        self.captured: dict[tuple[int, int], _CapturedGraph] = {}
        self._usable = True

    def __len__(self) -> int:
        return len(self.captured)

    def capture_sizes(self, max_num_seqs: int) -> None:
        """Captures steps of each number of rows up to `max_num_seqs`, so that the first requests do not wait for them.

        A step of the largest size comes first: smaller graphs then fit into its memory pool.
        """
        most_rows = bucket_size(max_num_seqs)
        widest = max(MAX_TOKENS_READ // (most_rows * PAGE_TOKENS), MIN_TABLE_COLUMNS)
        rows = sorted({bucket_size(count) for count in range(1, max_num_seqs + 1)}, reverse=True)
        narrow = [(count, MIN_TABLE_COLUMNS) for count in rows if _is_readable(count, MIN_TABLE_COLUMNS)]
        for size in dict.fromkeys([(most_rows, widest), *narrow]):
            if self._usable:
                ids, positions = torch.zeros(2, 1, size[0], dtype=torch.long, device=self._device)
                self._capture_and_verify([ids, positions, torch.full(size, NULL_PAGE, device=self._device)])

    def replay_step(self, ids: list[int], kvs: Sequence[PagedKVCache]) -> Tensor | None:
        """Logits (n, vocabulary) of one more token of each sequence, valid until the next call; None if no graph fits.

        A batch with one long sequence among short ones uses no graph, since all would be padded to its length.
        """
        if not self._usable:
            return None
        rows, columns = bucket_size(len(ids)), bucket_size(max(map(columns_needed, kvs)), MIN_TABLE_COLUMNS)
        bucketed_pages = sum(len(members) * width for members, width in bucket_by_length(kvs))
        if not _is_readable(rows, columns) or rows * columns > MAX_PADDING_RATIO * bucketed_pages:
            return None
        table, positions = build_tables(kvs, rows, columns)
        inputs = [
            torch.tensor([ids + [0] * (rows - len(ids))]),
            torch.from_numpy(positions)[None],
            torch.from_numpy(table),
        ]
        graph = self.captured.get((rows, columns)) or self._capture_and_verify(
            [tensor.to(self._device) for tensor in inputs]
        )
        if graph is None:
            return None
        for buffer, tensor in zip(graph[:3], inputs, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        return graph.logits[: len(ids)]

    def _capture_and_verify(self, inputs: list[Tensor]) -> _CapturedGraph | None:
        """Captures a graph and keeps it if its logits match the eager step; else disables graphs and returns None."""
        ids, positions, table = inputs
        try:
            expected = self._step(ids, positions, table).clone()
            logits, replay = self._capture(lambda: self._step(ids, positions, table))
            replay()
            error = float((logits - expected).float().norm() / expected.float().norm().clamp_min(1e-12))
            reason = None if error <= GRAPH_RTOL else f"the logits of a replay differ by {error:.2g}"
        except Exception as failure:  # noqa: BLE001  after any failure, steps run eagerly
            reason = one_line(failure)
        if reason is None:
            log.debug("captured a CUDA graph of %d rows and %d pages", *table.shape)
            graph = self.captured[len(table), table.shape[1]] = _CapturedGraph(ids, positions, table, logits, replay)
            return graph
        self._usable = False
        self.captured.clear()
        report_fallback(log, "cuda_graphs", "CUDA graphs are disabled: %s", reason)
        return None


def _is_readable(rows: int, columns: int) -> bool:
    """True if a batch may read tables of this size."""
    return rows * columns * PAGE_TOKENS <= MAX_TOKENS_READ


class CudaGraphCapture:
    """Captures CUDA graphs. They share one memory pool, since only one of them is replayed at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Captures a step as torch requires: after a warm-up on a side stream, which selects kernels and workspaces."""
        with torch.cuda.device(self._device):
            caller_stream = torch.cuda.current_stream()
            self._stream.wait_stream(caller_stream)
            with torch.cuda.stream(self._stream):
                step()
            caller_stream.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    logits = step()
            finally:
                torch.cuda.set_stream(caller_stream)  # a capture that fails leaves its own stream current
        return logits, graph.replay
