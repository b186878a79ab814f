"""The pass that takes the tokens of all sequences in one row, through transformers' attention interface."""

import inspect
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.cache.contiguous import KV, Contiguous
from antiphon.engine.cache.paged import PAGE, PagedKV, Pages
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.attention import Pack, Span
from antiphon.engine.model.cuda_graphs import CudaRecorder, Graphs, Recorder
from antiphon.engine.model.decode_batch import Batch, grouped, tables
from antiphon.engine.model.forward import Work


class PackedForward:
    """All sequences in one row of tokens, without padding.

    ``exact``: attention is computed over blocks of ``grain`` tokens of a prompt, wherever a step cuts it, and over one
    token at a time of what was said; by ``kernels`` always over one. ``lonely``: each token is run on its own, so that
    even linear layers whose rows depend on each other give it the same numbers always; slow. :meth:`determine` chooses
    what is needed.

    With ``pages`` caches are paged, and who says one token in a step is attended to together with the others who do.
    Without, ``kernels`` attend to everything, if there are any; ``compiled`` says whether they did so far.
    """

    chunked = True
    grain = 1

    def __init__(
        self,
        model: PreTrainedModel,
        windows: dict[int, int],
        pages: Pages | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self._model = model
        self._windows = windows
        self._pages = pages
        self._kernels = kernels if pages is None else None
        self._halves = False
        self._graphs: Graphs | None = None
        self.compiled = self._kernels is not None
        self.exact = self.lonely = False
        self.bytes_per_token = 0
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def paged(self) -> bool:
        """Whether caches are paged."""
        return self._pages is not None

    def new_state(self, expected: int) -> KV:
        """An empty cache."""
        if self._pages is not None:
            return PagedKV(self._pages, expected)
        return Contiguous(expected, halves=self._halves)

    def halve(self) -> bool:
        """From now on new caches hold fp16, if the kernels that read them can; whether they do."""
        self._halves = self.compiled and self._kernels is not None and self._kernels.halves
        self.bytes_per_token = 0  # until the next pass
        return self._halves

    def determine(self, *, independent: bool, grain: int = 1) -> None:
        """From now on a token's logits depend on its own text only, not on how it was cut or who else runs.

        ``independent``: whether the model's linear layers treat each row as if it were alone. With a ``grain`` they do
        depend on which tokens were a prompt's, and prompts must be cut at multiples of it.
        """
        self.exact, self.lonely, self.grain = independent, not independent, grain

    def provide(self, tokens: int, sequences: int) -> None:
        """Take the memory for paged caches of so many tokens in so many sequences; it has been tried with less."""
        if self._pages is not None:
            self._pages = self._pages.enlarged(-(-tokens // PAGE) + sequences + 1)

    @torch.inference_mode()
    def record(self, sequences: int, recorder: Recorder | None = None) -> None:
        """From now on steps in which everybody says one token are recorded and played again; pages must be there.

        They are recorded as CUDA graphs, unless a test records otherwise. At most so many ``sequences`` run at once.
        """
        device = self._model.device
        self._graphs = Graphs(self._each, recorder or CudaRecorder(device), device)
        self._graphs.begin(sequences)

    def run(self, work: list[Work]) -> Tensor:
        """One pass for all; a sequence's cache grows only if the pass succeeds."""
        if not self.lonely:
            return self._pass(work)
        tokens = [
            Work(item.state, [token], int(place >= len(item.ids) - item.rows))
            for item in work
            for place, token in enumerate(item.ids)
        ]
        return torch.cat([self._pass([token]) for token in tokens])

    def _pass(self, work: list[Work]) -> Tensor:
        single = [] if self._pages is None or self.exact or self.lonely else [one for one in work if len(one.ids) == 1]
        logits = None
        if self._graphs is not None and len(single) == len(work) and all(item.rows for item in work):
            logits = self._graphs.run([item.ids[0] for item in work], [item.state for item in work])
        if logits is None:
            logits = self._row(work, single)
        for item in work:
            item.state.commit(len(item.ids))
        self.bytes_per_token = self.bytes_per_token or work[0].state.bytes_per_token
        return logits.float()

    def _row(self, work: list[Work], single: list[Work]) -> Tensor:
        """The logits that are wanted, in the order of ``work``: those with a ``single`` token stand first."""
        row = _Row()
        batches: list[tuple[Batch, int, int]] = []
        for members, columns in grouped([item.state for item in single]):
            first = len(row.ids)
            for number in members:
                row.add(single[number])
            batches.append((self._batch([single[number].state for number in members], columns), first, len(row.ids)))
        spans: list[Span] = []
        for item in work:
            if id(item) not in row.first:
                first = row.add(item)
                spans.append(Span(item.state, [*pairwise(first + place for place in self._bounds(item))]))
        ends = [(row.first[id(item)] + len(item.ids), item.rows) for item in work]
        kept = [place for end, rows in ends for place in range(end - rows, end)]
        device = self._model.device
        pack = Pack(spans, self._windows, batches, self._kernels)
        logits = self._logits(
            torch.tensor([row.ids], device=device),
            torch.tensor([row.positions], device=device),
            pack,
            torch.tensor(kept, dtype=torch.long, device=device),
        )
        self.compiled &= pack.compiled
        return logits

    def _bounds(self, item: Work) -> list[int]:
        """Where what is attended to at once begins and ends."""
        if self.exact and not self.compiled:
            return cuts(item.state.length, len(item.ids), item.said, self.grain)
        return [0, len(item.ids)]

    def _batch(self, kvs: list[PagedKV], columns: int) -> Batch:
        assert self._pages is not None
        table, positions = (torch.from_numpy(entry).to(self._model.device) for entry in tables(kvs, len(kvs), columns))
        return Batch(self._pages, table, positions, self._model.dtype)

    def _each(self, ids: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """One token of each sequence, everything of which is on the device already."""
        assert self._pages is not None
        batch = Batch(self._pages, table, positions[0], self._model.dtype)
        return self._logits(ids, positions, Pack([], self._windows, [(batch, 0, len(table))]))

    def _logits(self, ids: Tensor, positions: Tensor, pack: Pack, chosen: Tensor | None = None) -> Tensor:
        """(rows, vocabulary) of the chosen places, or of all."""
        selected = {"logits_to_keep": chosen} if self._selects and chosen is not None else {}
        logits: Tensor = self._model(
            input_ids=ids, position_ids=positions, use_cache=False, pack=pack, **selected
        ).logits[0]
        return logits if self._selects or chosen is None else logits[chosen]


class _Row:
    """The tokens of a pass, their positions in their texts, and where whose begin."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.first: dict[int, int] = {}

    def add(self, item: Work) -> int:
        """Where its tokens begin."""
        first = self.first[id(item)] = len(self.ids)
        self.ids += item.ids
        self.positions += range(item.state.length, item.state.length + len(item.ids))
        return first


def cuts(start: int, length: int, said: int, grain: int) -> list[int]:
    """Where blocks begin and end among ``length`` tokens, the first of which stands at ``start`` in its text.

    The prompt's are cut at multiples of ``grain`` in the text, the last ``said`` from each other.
    """
    prompt = length - said
    inner = range(grain - start % grain, prompt, grain)
    return [0, *inner, *range(max(prompt, 1), length + 1)]
