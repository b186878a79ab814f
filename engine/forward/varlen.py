"""The forward pass that runs the tokens of all sequences as one row, through transformers' attention interface."""

import inspect
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.forward.adapter_rows import AdapterRows, run_apart
from antiphon.engine.forward.attention import CURRENT_METADATA, AttentionMetadata, SequenceSpan
from antiphon.engine.forward.attention_variants.indexers import attach_indexers, find_indexers
from antiphon.engine.forward.attention_variants.layer_variants import (
    RowPositions,
    asks_cache_for_positions,
    find_variants,
)
from antiphon.engine.forward.cuda_graphs import CudaGraphCapture, CudaGraphs, GraphCapture
from antiphon.engine.forward.decode_batch import DecodeBatch, bucket_by_length, build_tables
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.pictures import join_rows, place_positions
from antiphon.engine.forward.token_row import TokenRow, split_input
from antiphon.engine.kernels.bindings import Kernels


class VarlenForward:
    """Runs all sequences as one row of tokens, without padding.

    `batch_invariant` computes attention in blocks of `prompt_alignment` prompt tokens, regardless of how steps
    split the prompt, and one by one for generated tokens; `kernels` always compute it per token.
    `one_token_passes` runs each token in a pass of its own, so that linear layers whose rows depend on each other
    also give reproducible results; slow. `make_deterministic` chooses between them.

    With `pages`, caches are paged, and sequences that decode one token in a step share one attention call. Without,
    `kernels` compute all attention if given; `uses_kernels` tells whether they have done so in every pass.
    """

    supports_chunked_prefill = supports_drafts = True
    prompt_alignment = 1
    max_num_seqs: int | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        windows: dict[int, int],
        pages: PagePool | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.model = model
        self._windows = windows
        config = model.config.get_text_config(decoder=True)
        self._variants = find_variants(config)
        self._asks_cache = asks_cache_for_positions(config)
        self._indexers = find_indexers(model)
        attach_indexers(self._indexers)
        self.pages = pages
        # Kernels know no selected keys; a layer must compute all tokens in the same way.
        self._kernels = kernels if pages is None and not self._indexers else None
        self._fp16_cache = False
        self.graphs: CudaGraphs | None = None
        self.uses_kernels = self._kernels is not None
        self._attention_limit: str | None = None
        self.batch_invariant = self.one_token_passes = False
        self.bytes_per_token = 0
        self.selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        """True if the model computes its head for the requested logits only."""
        self.adapter_rows: AdapterRows | None = None
        self.two_way_layers: frozenset[int] = frozenset()
        """Layers in which the tokens of a picture see all of it."""

    @property
    def is_paged(self) -> bool:
        """True if caches are paged."""
        return self.pages is not None

    @property
    def state_tokens(self) -> int:
        """Memory that a sequence takes besides its tokens, in tokens."""
        return 0

    def runs_in_parts(self, layer: str) -> bool:  # noqa: ARG002  for subclasses
        """Tells whether a linear layer is called with some of the rows of a pass at a time."""
        return False

    def new_cache(self, expected: int) -> KVCache:
        """Returns an empty cache for a sequence that is expected to hold `expected` tokens."""
        if self.pages is not None:
            return PagedKVCache(self.pages, expected)
        return ContiguousKVCache(expected, fp16=self._fp16_cache)

    def use_fp16_cache(self) -> bool:
        """Makes new caches hold fp16 if the kernels can read it. Returns whether they do."""
        self._fp16_cache = self.uses_kernels and self._kernels is not None and self._kernels.supports_fp16_cache
        self.bytes_per_token = 0  # until the next pass
        return self._fp16_cache

    def explain_fp32_cache(self) -> str:
        """Returns the reason why `use_fp16_cache` changes nothing."""
        if self.pages is not None:
            return "the caches are paged, in the model's type"
        if self._indexers:
            return "an indexer selects the keys of its layers"
        if self._kernels is None:
            return "compiled kernels are missing"
        return self._attention_limit or "the kernels of this processor do not read fp16"

    def make_deterministic(self, *, independent_rows: bool, prompt_alignment: int = 1) -> None:
        """Makes the logits of a sequence independent of the batch and of how its prompt is split over steps.

        `independent_rows` tells whether the result of each row of the model's linear layers is independent of the
        other rows. With a `prompt_alignment` above 1, logits depend on which tokens were the prompt's, and prompts
        must be split at multiples of it.
        """
        self.batch_invariant, self.one_token_passes, self.prompt_alignment = (
            independent_rows,
            not independent_rows,
            prompt_alignment,
        )

    def allocate_pages(self, tokens: int, max_num_seqs: int) -> None:
        """Allocates the memory of paged caches for `tokens` tokens in up to `max_num_seqs` sequences.

        Replaces the small pool that was used for the tests.
        """
        if self.pages is not None:
            self.pages = self.pages.with_size(-(-tokens // PAGE_TOKENS) + max_num_seqs + 1)

    @torch.inference_mode()
    def capture_graphs(self, max_num_seqs: int, capture: GraphCapture | None = None) -> None:
        """Enables graphs of pure decode steps of up to `max_num_seqs` sequences. The pages must be allocated.

        `capture` replaces the capture of CUDA graphs in tests.
        """
        device = self.model.device
        self.graphs = CudaGraphs(self._decode_step, capture or CudaGraphCapture(device), device)
        self.graphs.capture_sizes(max_num_seqs)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs one pass over all sequences. Their caches grow only if the pass succeeds."""
        if not self.one_token_passes:
            is_mixed = self.adapter_rows is not None and not self.adapter_rows.one_pass
            return run_apart(self.run_pass, inputs) if is_mixed else self.run_pass(inputs)
        tokens = [token for item in inputs for token in split_input(item)]
        return torch.cat([self.run_pass([token]) for token in tokens])

    def run_pass(self, inputs: list[SequenceInput]) -> Tensor:
        """Does the same as `run`, always in one pass."""
        decode_inputs = (
            []
            if self.pages is None or self.batch_invariant or self.one_token_passes
            else [item for item in inputs if len(item.ids) == 1]
        )
        logits = None
        has_adapters = any(item.adapter is not None for item in inputs)
        if (
            self.graphs is not None
            and not has_adapters
            and all(item.pictures is None for item in inputs)
            and len(decode_inputs) == len(inputs)
            and all(item.num_logits for item in inputs)
        ):
            logits = self.graphs.replay_step([item.ids[0] for item in inputs], [item.cache for item in inputs])
        if logits is None:
            logits = self._run_eager(inputs, decode_inputs)
        for item in inputs:
            item.cache.commit(len(item.ids))
        self.bytes_per_token = self.bytes_per_token or inputs[0].cache.bytes_per_token
        return logits.float()

    def _run_eager(self, inputs: list[SequenceInput], decode_inputs: list[SequenceInput]) -> Tensor:
        """Requested logits, in the order of `inputs`. In the row of tokens, `decode_inputs` come first."""
        row = TokenRow()
        batches = self._add_batches(row, decode_inputs)
        spans = self._add_spans(row, inputs)
        attn_metadata = AttentionMetadata(spans, self._windows, batches, self._kernels)
        attn_metadata.two_way_layers = self.two_way_layers
        logits = self._run_row(row, row.find_logits(inputs), attn_metadata)
        self.uses_kernels &= attn_metadata.used_kernels
        self._attention_limit = self._attention_limit or attn_metadata.unsupported
        return logits

    def _add_batches(self, row: TokenRow, inputs: list[SequenceInput]) -> list[tuple[DecodeBatch, int, int]]:
        """Adds one token per input. Returns the batches that share an attention call, with their parts of the row."""
        batches = []
        for members, columns in bucket_by_length([item.cache for item in inputs]):
            first = len(row.ids)
            for index in members:
                row.add_input(inputs[index])
            batch = self._build_decode_batch([inputs[index].cache for index in members], columns)
            batches.append((batch, first, len(row.ids)))
        return batches

    def _add_spans(self, row: TokenRow, inputs: list[SequenceInput]) -> list[SequenceSpan]:
        """Adds the inputs that are not in the row yet. Returns the blocks of tokens that attend together.

        The rows of one adapter are neighbors, so that they are a range.
        """
        spans = []
        for item in sorted(inputs, key=lambda item: 0 if item.adapter is None else item.adapter.number):
            if id(item) not in row.first_index:
                first = row.add_input(item)
                bounds = [first + index for index in self._attention_bounds(item)]
                ends = None if item.pictures is None else item.pictures.visible_ends
                spans.append(SequenceSpan(item.cache, [*pairwise(bounds)], ends))
        return spans

    def _run_row(self, row: TokenRow, logit_indices: list[int], attn_metadata: AttentionMetadata) -> Tensor:
        """Runs the model over the row, with the adapters of its tokens."""
        device = self.model.device
        positions = place_positions(row.positions, row.pictures, device)
        rows = row.feature_rows
        attn_metadata.encoder_outputs = join_rows(rows) if rows else None
        if self.adapter_rows is not None:
            head_rows = logit_indices if self.selects_logits else range(len(row.ids))
            self.adapter_rows.begin(row.adapters, head_rows, device)
            attn_metadata.is_unfused = self.adapter_rows.is_active
        try:
            return self._call_model(
                torch.tensor([row.ids], device=device),
                positions,
                attn_metadata,
                torch.tensor(logit_indices, dtype=torch.long, device=device),
            )
        finally:
            if self.adapter_rows is not None:
                self.adapter_rows.clear()

    def _attention_bounds(self, item: SequenceInput) -> list[int]:
        """Bounds of the token blocks for which attention is computed at once, relative to the input's first token."""
        if self.batch_invariant and not self.uses_kernels:
            return split_points(item.cache.length, len(item.ids), item.num_generated, self.prompt_alignment)
        return [0, len(item.ids)]

    def _build_decode_batch(self, kvs: list[PagedKVCache], columns: int) -> DecodeBatch:
        assert self.pages is not None
        table, positions = (
            torch.from_numpy(tensor).to(self.model.device) for tensor in build_tables(kvs, len(kvs), columns)
        )
        return DecodeBatch(self.pages, table, positions, self.model.dtype)

    def _decode_step(self, ids: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """Decodes one token per sequence. All inputs are on the device, as graph capture requires."""
        assert self.pages is not None
        batch = DecodeBatch(self.pages, table, positions[0], self.model.dtype)
        return self._call_model(ids, positions, AttentionMetadata([], self._windows, [(batch, 0, len(table))]))

    def _call_model(
        self, ids: Tensor, positions: Tensor, attn_metadata: AttentionMetadata, logit_indices: Tensor | None = None
    ) -> Tensor:
        """Logits (rows, vocabulary) at `logit_indices` of the row, or at all."""
        options: dict[str, Any] = (
            {"past_key_values": RowPositions(positions.flatten(0, -2)[0])} if self._asks_cache else {}
        )
        if self.selects_logits and logit_indices is not None:
            options["logits_to_keep"] = logit_indices
        if attn_metadata.encoder_outputs is not None:
            options["mm_encoder_outputs"] = attn_metadata.encoder_outputs
        attn_metadata.variants = self._variants
        token = CURRENT_METADATA.set(attn_metadata)
        try:
            logits: Tensor = self.model(
                input_ids=ids, position_ids=positions, use_cache=False, attn_metadata=attn_metadata, **options
            ).logits[0]
        finally:
            CURRENT_METADATA.reset(token)
        return logits if self.selects_logits or logit_indices is None else logits[logit_indices]


def split_points(start: int, length: int, num_generated: int, alignment: int) -> list[int]:
    """Bounds of attention blocks in `length` tokens, the first at position `start` of its sequence.

    Prompt tokens are split at positions that are multiples of `alignment`; the last `num_generated` tokens form
    blocks of their own. Example: start 6, length 7, num_generated 2, alignment 4 → [0, 2, 5, 6, 7], that is, the
    prompt positions 6 to 7 and 8 to 10, then the generated tokens 11 and 12.
    """
    prompt = length - num_generated
    inner = range(alignment - start % alignment, prompt, alignment)
    return [0, *inner, *range(max(prompt, 1), length + 1)]
