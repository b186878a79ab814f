"""Steps in which everybody says one token, recorded once for each size and played again.

A GPU computes a small kernel in less time than it takes to ask for it, and a step is hundreds of them. A recording is
a fixed sequence of kernels on fixed memory. So batches are filled up to a few sizes, and what differs from step to step
is copied into tables that the recording reads. It is compared with the pass that it recorded before it is trusted;
where a model cannot be recorded, its steps run as they would without.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from antiphon.engine.cache.paged import NULL_PAGE, PAGE_TOKENS, PagedKVCache
from antiphon.engine.errors import one_line
from antiphon.engine.model.decode_batch import (
    MAX_TOKENS_READ,
    MIN_TABLE_COLUMNS,
    bucket_by_length,
    bucket_size,
    build_tables,
    columns_needed,
)

log = logging.getLogger(__name__)

MAX_PADDING_RATIO = 3
"""A recording may read so many times what would be read of sequences of about one length each on their own."""

GRAPH_RTOL = 1e-2
"""Relative error of the logits up to which a recording counts as what it recorded."""

DecodeStep = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Ids and positions (1, rows) and a table of pages (rows, columns) → logits (rows, vocabulary)."""


class GraphCapture(Protocol):
    """Runs a step and keeps it: the tensor that holds its result, and what computes it anew."""

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]: ...  # noqa: D102


class _CapturedGraph(NamedTuple):
    """Inputs and result of a step, and what computes the one from the others."""

    ids: Tensor
    positions: Tensor
    table: Tensor
    logits: Tensor
    replay: Callable[[], None]


class CudaGraphs:
    """Recordings of ``step`` on a device, made when a size is first wanted."""

    def __init__(self, step: DecodeStep, capture: GraphCapture, device: torch.device) -> None:
        self._step = step
        self._capture = capture
        self._device = device
        self._graphs: dict[tuple[int, int], _CapturedGraph] = {}
        self._usable = True

    def __len__(self) -> int:
        return len(self._graphs)

    def capture_largest(self, max_num_seqs: int) -> None:
        """Record a step that reads as much as any: smaller ones find room in its memory, but no larger one would."""
        rows = bucket_size(max_num_seqs)
        columns = max(MAX_TOKENS_READ // (rows * PAGE_TOKENS), MIN_TABLE_COLUMNS)
        ids, positions = torch.zeros(2, 1, rows, dtype=torch.long, device=self._device)
        self._capture_and_verify([ids, positions, torch.full((rows, columns), NULL_PAGE, device=self._device)])

    def replay_step(self, ids: list[int], kvs: Sequence[PagedKVCache]) -> Tensor | None:
        """Logits (n, vocabulary) after one more token of each, valid until the next call; None: it is not recorded.

        One long sequence among short ones is not: all of them would be filled up to its length.
        """
        if not self._usable:
            return None
        rows, columns = bucket_size(len(ids)), bucket_size(max(map(columns_needed, kvs)), MIN_TABLE_COLUMNS)
        apart = sum(len(members) * width for members, width in bucket_by_length(kvs))
        if rows * columns > min(MAX_TOKENS_READ // PAGE_TOKENS, MAX_PADDING_RATIO * apart):
            return None
        table, positions = build_tables(kvs, rows, columns)
        inputs = [
            torch.tensor([ids + [0] * (rows - len(ids))]),
            torch.from_numpy(positions)[None],
            torch.from_numpy(table),
        ]
        recording = self._graphs.get((rows, columns)) or self._capture_and_verify(
            [entry.to(self._device) for entry in inputs]
        )
        if recording is None:
            return None
        for kept, entry in zip(recording[:3], inputs, strict=True):
            kept.copy_(entry)
        recording.replay()
        return recording.logits[: len(ids)]

    def _capture_and_verify(self, inputs: list[Tensor]) -> _CapturedGraph | None:
        """Keep a recording that does what the step does; None, and never another, if there cannot be one."""
        ids, positions, table = inputs
        try:
            truth = self._step(ids, positions, table).clone()
            logits, play = self._capture(lambda: self._step(ids, positions, table))
            play()
            error = float((logits - truth).float().norm() / truth.float().norm().clamp_min(1e-12))
            reason = None if error <= GRAPH_RTOL else f"what it plays differs by {error:.2g}"
        except Exception as failure:  # noqa: BLE001  whatever happens here, steps run without recordings
            reason = one_line(failure)
        if reason is None:
            log.debug("recorded a step of %d rows and %d pages", *table.shape)
            recording = self._graphs[len(table), table.shape[1]] = _CapturedGraph(ids, positions, table, logits, play)
            return recording
        self._usable = False
        self._graphs.clear()
        log.warning("steps are not recorded as CUDA graphs: %s", reason)
        return None


class CudaGraphCapture:
    """Records CUDA graphs, which share their memory: only one of them is played at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """As torch asks for: first on the stream aside, where kernels are chosen and their workspaces made."""
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            with torch.cuda.stream(self._stream):
                step()
            before.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    logits = step()
            finally:
                torch.cuda.set_stream(before)  # a recording that fails leaves its own behind
        return logits, graph.replay
