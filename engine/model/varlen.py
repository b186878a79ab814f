"""The pass that takes the tokens of all sequences in one row, through transformers' attention interface."""

import inspect
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.attention import AttentionMetadata, SequenceSpan
from antiphon.engine.model.cuda_graphs import CudaGraphCapture, CudaGraphs, GraphCapture
from antiphon.engine.model.decode_batch import DecodeBatch, bucket_by_length, build_tables
from antiphon.engine.model.forward import SequenceInput


class VarlenForward:
    """All sequences in one row of tokens, without padding.

    ``exact``: attention is computed over blocks of ``grain`` tokens of a prompt, wherever a step cuts it, and over one
    token at a time of what was said; by ``kernels`` always over one. ``lonely``: each token is run on its own, so that
    even linear layers whose rows depend on each other give it the same numbers always; slow. :meth:`determine` chooses
    what is needed.

    With ``pages`` caches are paged, and who says one token in a step is attended to together with the others who do.
    Without, ``kernels`` attend to everything, if there are any; ``compiled`` says whether they did so far.
    """

    supports_chunked_prefill = True
    prompt_alignment = 1

    def __init__(
        self,
        model: PreTrainedModel,
        windows: dict[int, int],
        pages: PagePool | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self._model = model
        self._windows = windows
        self._pages = pages
        self._kernels = kernels if pages is None else None
        self._fp16_cache = False
        self._graphs: CudaGraphs | None = None
        self.uses_kernels = self._kernels is not None
        self.batch_invariant = self.one_token_passes = False
        self.bytes_per_token = 0
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def is_paged(self) -> bool:
        """Whether caches are paged."""
        return self._pages is not None

    def new_cache(self, expected: int) -> KVCache:
        """An empty cache."""
        if self._pages is not None:
            return PagedKVCache(self._pages, expected)
        return ContiguousKVCache(expected, fp16=self._fp16_cache)

    def use_fp16_cache(self) -> bool:
        """From now on new caches hold fp16, if the kernels that read them can; whether they do."""
        self._fp16_cache = self.uses_kernels and self._kernels is not None and self._kernels.supports_fp16_cache
        self.bytes_per_token = 0  # until the next pass
        return self._fp16_cache

    def make_deterministic(self, *, independent_rows: bool, prompt_alignment: int = 1) -> None:
        """From now on a token's logits depend on its own text only, not on how it was cut or who else runs.

        ``independent``: whether the model's linear layers treat each row as if it were alone. With a ``grain`` they do
        depend on which tokens were a prompt's, and prompts must be cut at multiples of it.
        """
        self.batch_invariant, self.one_token_passes, self.prompt_alignment = (
            independent_rows,
            not independent_rows,
            prompt_alignment,
        )

    def allocate_pages(self, tokens: int, max_num_seqs: int) -> None:
        """Take the memory for paged caches of so many tokens in so many sequences; it has been tried with less."""
        if self._pages is not None:
            self._pages = self._pages.resized(-(-tokens // PAGE_TOKENS) + max_num_seqs + 1)

    @torch.inference_mode()
    def capture_graphs(self, max_num_seqs: int, capture: GraphCapture | None = None) -> None:
        """From now on steps in which everybody says one token are recorded and played again; pages must be there.

        They are recorded as CUDA graphs, unless a test records otherwise. At most so many ``sequences`` run at once.
        """
        device = self._model.device
        self._graphs = CudaGraphs(self._decode_step, capture or CudaGraphCapture(device), device)
        self._graphs.capture_largest(max_num_seqs)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """One pass for all; a sequence's cache grows only if the pass succeeds."""
        if not self.one_token_passes:
            return self._run_pass(inputs)
        tokens = [
            SequenceInput(item.cache, [token], int(place >= len(item.ids) - item.num_logits))
            for item in inputs
            for place, token in enumerate(item.ids)
        ]
        return torch.cat([self._run_pass([token]) for token in tokens])

    def _run_pass(self, inputs: list[SequenceInput]) -> Tensor:
        single = (
            []
            if self._pages is None or self.batch_invariant or self.one_token_passes
            else [one for one in inputs if len(one.ids) == 1]
        )
        logits = None
        if self._graphs is not None and len(single) == len(inputs) and all(item.num_logits for item in inputs):
            logits = self._graphs.replay_step([item.ids[0] for item in inputs], [item.cache for item in inputs])
        if logits is None:
            logits = self._run_eager(inputs, single)
        for item in inputs:
            item.cache.commit(len(item.ids))
        self.bytes_per_token = self.bytes_per_token or inputs[0].cache.bytes_per_token
        return logits.float()

    def _run_eager(self, inputs: list[SequenceInput], single: list[SequenceInput]) -> Tensor:
        """The logits that are wanted, in the order of ``work``: those with a ``single`` token stand first."""
        row = _TokenRow()
        batches: list[tuple[DecodeBatch, int, int]] = []
        for members, columns in bucket_by_length([item.cache for item in single]):
            first = len(row.ids)
            for number in members:
                row.add_input(single[number])
            batches.append(
                (self._build_decode_batch([single[number].cache for number in members], columns), first, len(row.ids))
            )
        spans: list[SequenceSpan] = []
        for item in inputs:
            if id(item) not in row.first_index:
                first = row.add_input(item)
                spans.append(
                    SequenceSpan(item.cache, [*pairwise(first + place for place in self._attention_bounds(item))])
                )
        ends = [(row.first_index[id(item)] + len(item.ids), item.num_logits) for item in inputs]
        kept = [place for end, rows in ends for place in range(end - rows, end)]
        device = self._model.device
        attn_metadata = AttentionMetadata(spans, self._windows, batches, self._kernels)
        logits = self._call_model(
            torch.tensor([row.ids], device=device),
            torch.tensor([row.positions], device=device),
            attn_metadata,
            torch.tensor(kept, dtype=torch.long, device=device),
        )
        self.uses_kernels &= attn_metadata.used_kernels
        return logits

    def _attention_bounds(self, item: SequenceInput) -> list[int]:
        """Where what is attended to at once begins and ends."""
        if self.batch_invariant and not self.uses_kernels:
            return split_points(item.cache.length, len(item.ids), item.num_generated, self.prompt_alignment)
        return [0, len(item.ids)]

    def _build_decode_batch(self, kvs: list[PagedKVCache], columns: int) -> DecodeBatch:
        assert self._pages is not None
        table, positions = (
            torch.from_numpy(entry).to(self._model.device) for entry in build_tables(kvs, len(kvs), columns)
        )
        return DecodeBatch(self._pages, table, positions, self._model.dtype)

    def _decode_step(self, ids: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """One token of each sequence, everything of which is on the device already."""
        assert self._pages is not None
        batch = DecodeBatch(self._pages, table, positions[0], self._model.dtype)
        return self._call_model(ids, positions, AttentionMetadata([], self._windows, [(batch, 0, len(table))]))

    def _call_model(
        self, ids: Tensor, positions: Tensor, attn_metadata: AttentionMetadata, chosen: Tensor | None = None
    ) -> Tensor:
        """(rows, vocabulary) of the chosen places, or of all."""
        selected = {"logits_to_keep": chosen} if self._selects_logits and chosen is not None else {}
        logits: Tensor = self._model(
            input_ids=ids, position_ids=positions, use_cache=False, attn_metadata=attn_metadata, **selected
        ).logits[0]
        return logits if self._selects_logits or chosen is None else logits[chosen]


class _TokenRow:
    """The tokens of a pass, their positions in their texts, and where whose begin."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.first_index: dict[int, int] = {}

    def add_input(self, item: SequenceInput) -> int:
        """Where its tokens begin."""
        first = self.first_index[id(item)] = len(self.ids)
        self.ids += item.ids
        self.positions += range(item.cache.length, item.cache.length + len(item.ids))
        return first


def split_points(start: int, length: int, num_generated: int, alignment: int) -> list[int]:
    """Where blocks begin and end among ``length`` tokens, the first of which stands at ``start`` in its text.

    The prompt's are cut at multiples of ``grain`` in the text, the last ``said`` from each other.
    """
    prompt = length - num_generated
    inner = range(alignment - start % alignment, prompt, alignment)
    return [0, *inner, *range(max(prompt, 1), length + 1)]
