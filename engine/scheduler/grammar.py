"""What a grammar allows next: llguidance's matchers over one model's vocabulary, as masks for the sampler.

A grammar is Lark text that speaks of the whole answer; a :class:`Guide` follows one answer. It knows no dialect and no
model: a matcher's word is taken as it is, but that a token which ends the turn may come wherever the answer is whole.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from antiphon.engine.protocol import EngineError

MAX_COMPILED_GRAMMARS = 64
"""Compiled grammars that are kept for the next request: agents send the same tools with every turn."""


_MASK_EXECUTOR = ThreadPoolExecutor(1, "masks")
"""One thread: the model has use for the other cores meanwhile."""


class GrammarMatcher:
    """Follows one answer. A matcher that gave up allows nothing, so that no broken answer passes for a whole one."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, stop_ids: Iterable[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._stop_ids = sorted(stop_ids)
        self._is_over = False
        self._pending_mask: Future[None] | None = None
        self._next_mask: Tensor | None = None

    def next_mask(self) -> Tensor:
        """Which tokens may come next: bool, (vocabulary,)."""
        self._wait_pending()
        if self._next_mask is None:
            self._next_mask = self._compute_mask()
        return self._next_mask

    def advance(self, token: int) -> None:
        """This token was said."""
        self._wait_pending()
        self._next_mask = None
        if not self._is_over and not self._matcher.is_stopped():
            ends = token in self._stop_ids
            self._is_over = ends or not self._matcher.consume_token(token)

    def _wait_pending(self) -> None:
        """Wait until nobody else has the matcher."""
        coming, self._pending_mask = self._pending_mask, None
        if coming is not None:
            coming.result()

    def _compute_mask(self) -> Tensor:
        # In numpy: torch would wake its threads for these few bytes, and wait for all of them.
        allowed = np.zeros(self._vocab_size, np.uint8)
        if self._matcher.is_error():
            return torch.from_numpy(allowed.view(bool))
        whole = self._matcher.is_accepting()
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        allowed[self._stop_ids] = whole
        return torch.from_numpy(allowed.view(bool))


def prefetch_masks(matchers: Iterable[object]) -> None:
    """Begin with the next masks of those that are a :class:`Guide`, and return: the model runs meanwhile."""
    asked = [guide for guide in matchers if isinstance(guide, GrammarMatcher) and guide._next_mask is None]
    if not asked:
        return

    def compute() -> None:
        for guide in asked:
            guide._next_mask = guide._compute_mask()

    coming = _MASK_EXECUTOR.submit(compute)
    for guide in asked:
        guide._pending_mask = coming


class GrammarCompiler:
    """Compiles grammars for one vocabulary of ``vocabulary`` ids."""

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def create_matcher(self, grammar: str, stop_ids: Iterable[int]) -> GrammarMatcher:
        """A guide from the first token on. Raises :class:`EngineError` ``invalid_request`` for a bad grammar."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
            if matcher.is_error():
                raise EngineError("invalid_request", f"the grammar cannot be used: {matcher.get_error()[:300]}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(matcher.deep_copy(), self._vocabulary, stop_ids)


CompilerFactory = Callable[[], GrammarCompiler | None]
"""Guides are opened when the first grammar comes: reading a vocabulary takes a moment, and few requests need it."""


def compiler_factory(folder: Path, vocabulary: int, eos: Iterable[int]) -> CompilerFactory:
    """How to open the guides of a model's folder; None comes back where its tokenizer cannot be read."""
    opened: list[GrammarCompiler | None] = []

    def open_once() -> GrammarCompiler | None:
        if not opened:
            opened.append(_open_compiler(folder / "tokenizer.json", vocabulary, list(eos)))
        return opened[0]

    return open_once


def _open_compiler(file: Path, vocabulary: int, eos: list[int]) -> GrammarCompiler | None:
    if not file.exists():
        return None
    try:
        tokenizer = LLTokenizer(str(file), n_vocab=vocabulary, eos_token=eos or None)
    except (ValueError, RuntimeError):
        return None
    return GrammarCompiler(tokenizer, vocabulary)
