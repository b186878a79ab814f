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

KEPT = 64
"""Compiled grammars that are kept for the next request: agents send the same tools with every turn."""


_BESIDE = ThreadPoolExecutor(1, "masks")
"""One thread: the model has use for the other cores meanwhile."""


class Guide:
    """Follows one answer. A matcher that gave up allows nothing, so that no broken answer passes for a whole one."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, stops: Iterable[int]) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._stops = sorted(stops)
        self._over = False
        self._coming: Future[None] | None = None
        self._ready: Tensor | None = None

    def mask(self) -> Tensor:
        """Which tokens may come next: bool, (vocabulary,)."""
        self._settle()
        if self._ready is None:
            self._ready = self._compute()
        return self._ready

    def advance(self, token: int) -> None:
        """This token was said."""
        self._settle()
        self._ready = None
        if not self._over and not self._matcher.is_stopped():
            ends = token in self._stops
            self._over = ends or not self._matcher.consume_token(token)

    def _settle(self) -> None:
        """Wait until nobody else has the matcher."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.result()

    def _compute(self) -> Tensor:
        # In numpy: torch would wake its threads for these few bytes, and wait for all of them.
        allowed = np.zeros(self._vocabulary, np.uint8)
        if self._matcher.is_error():
            return torch.from_numpy(allowed.view(bool))
        whole = self._matcher.is_accepting()
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little")
        allowed[self._stops] = whole
        return torch.from_numpy(allowed.view(bool))


def prepare(guides: Iterable[object]) -> None:
    """Begin with the next masks of those that are a :class:`Guide`, and return: the model runs meanwhile."""
    asked = [guide for guide in guides if isinstance(guide, Guide) and guide._ready is None]
    if not asked:
        return

    def compute() -> None:
        for guide in asked:
            guide._ready = guide._compute()

    coming = _BESIDE.submit(compute)
    for guide in asked:
        guide._coming = coming


class Guides:
    """Compiles grammars for one vocabulary of ``vocabulary`` ids."""

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def guide(self, grammar: str, stops: Iterable[int]) -> Guide:
        """A guide from the first token on. Raises :class:`EngineError` ``invalid_request`` for a bad grammar."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
            if matcher.is_error():
                raise EngineError("invalid_request", f"the grammar cannot be used: {matcher.get_error()[:300]}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return Guide(matcher.deep_copy(), self._vocabulary, stops)


Opener = Callable[[], Guides | None]
"""Guides are opened when the first grammar comes: reading a vocabulary takes a moment, and few requests need it."""


def opener(folder: Path, vocabulary: int, eos: Iterable[int]) -> Opener:
    """How to open the guides of a model's folder; None comes back where its tokenizer cannot be read."""
    opened: list[Guides | None] = []

    def open_once() -> Guides | None:
        if not opened:
            opened.append(_open(folder / "tokenizer.json", vocabulary, list(eos)))
        return opened[0]

    return open_once


def _open(file: Path, vocabulary: int, eos: list[int]) -> Guides | None:
    if not file.exists():
        return None
    try:
        tokenizer = LLTokenizer(str(file), n_vocab=vocabulary, eos_token=eos or None)
    except (ValueError, RuntimeError):
        return None
    return Guides(tokenizer, vocabulary)
