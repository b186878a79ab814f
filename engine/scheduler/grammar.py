"""Grammar masks for the sampler, from llguidance matchers over one model's vocabulary.

A grammar is Lark text that describes the whole output of a turn; a `GrammarMatcher` follows one output. This
module knows no dialect and no model. It changes a matcher's mask in one respect: stop tokens are allowed exactly where
the output is complete. If the grammar has nothing else at a place, its own tokens are, too: then the turn stops there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from antiphon.engine.grammar_limits import MAX_COMPILED_GRAMMARS, PARSER_LIMITS
from antiphon.engine.protocol import EngineError

_MASK_EXECUTOR = ThreadPoolExecutor(1, "masks")
"""Computes masks during the forward pass, on one thread: the model uses the other cores."""


class GrammarMatcher:
    """Follows the output of one turn.

    A matcher in an error state allows no token, so that a broken output does not pass for a complete one.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, stop_ids: Iterable[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._stop_ids = sorted(stop_ids)
        self._is_over = False
        self._pending_mask: Future[None] | None = None
        self._next_mask: Tensor | None = None

    def next_mask(self) -> Tensor:
        """Returns the tokens allowed next: bool, (vocabulary,)."""
        self._wait_pending()
        if self._next_mask is None:
            self._next_mask = self._compute_mask()
        return self._next_mask

    @property
    def has_failed(self) -> bool:
        """True if the parser reached a limit, after which no token is allowed."""
        self._wait_pending()
        return self._matcher.is_error()

    @property
    def is_finished(self) -> bool:
        """True if the output is complete, and no token can follow: the model has no stop token either."""
        self._wait_pending()
        return not self._stop_ids and self._matcher.is_stopped() and self._matcher.is_accepting()

    def advance(self, token: int) -> None:
        """Records that the token was generated."""
        self._wait_pending()
        self._next_mask = None
        if not self._is_over and not self._matcher.is_stopped():
            is_stop = token in self._stop_ids
            self._is_over = is_stop or not self._matcher.consume_token(token)

    def _wait_pending(self) -> None:
        """Waits until the executor thread no longer uses the matcher."""
        pending, self._pending_mask = self._pending_mask, None
        if pending is not None:
            pending.result()

    def _compute_mask(self) -> Tensor:
        # numpy, since torch would wake its thread pool for these few bytes and wait for all threads.
        allowed = np.zeros(self._vocab_size, np.uint8)
        if self._matcher.is_error():
            return torch.from_numpy(allowed.view(bool))
        is_complete = self._matcher.is_accepting()
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        own = allowed.copy()
        allowed[self._stop_ids] = is_complete
        return torch.from_numpy((allowed if allowed.any() else own).view(bool))


def prefetch_masks(matchers: Iterable[object]) -> None:
    """Starts computing the next masks in the background while the model runs. Skips all but `GrammarMatcher`."""
    pending = [matcher for matcher in matchers if isinstance(matcher, GrammarMatcher) and matcher._next_mask is None]
    if not pending:
        return

    def compute() -> None:
        for matcher in pending:
            matcher._next_mask = matcher._compute_mask()

    future = _MASK_EXECUTOR.submit(compute)
    for matcher in pending:
        matcher._pending_mask = future


class GrammarCompiler:
    """Compiles grammars for one tokenizer, with `vocabulary` token ids. Keeps the most recently used ones."""

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def create_matcher(self, grammar: str, stop_ids: Iterable[int]) -> GrammarMatcher:
        """A matcher at the first token. Raises `EngineError` `invalid_request` for an invalid grammar."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=PARSER_LIMITS)
            if matcher.is_error():
                raise EngineError("invalid_request", f"the grammar is invalid: {matcher.get_error()[:300]}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(matcher.deep_copy(), self._vocabulary, stop_ids)


CompilerFactory = Callable[[], GrammarCompiler | None]
"""Returns the compiler of a model, None if it has none. It is created on first use: loading a tokenizer takes time."""


def compiler_factory(folder: Path, vocabulary: int, eos: Iterable[int]) -> CompilerFactory:
    """A factory that loads the tokenizer of a model folder once; it returns None if the tokenizer cannot be read."""
    compilers: list[GrammarCompiler | None] = []

    def open_once() -> GrammarCompiler | None:
        if not compilers:
            compilers.append(_open_compiler(folder / "tokenizer.json", vocabulary, list(eos)))
        return compilers[0]

    return open_once


def _open_compiler(file: Path, vocabulary: int, eos: list[int]) -> GrammarCompiler | None:
    if not file.exists():
        return None
    try:
        tokenizer = LLTokenizer(str(file), n_vocab=vocabulary, eos_token=eos or None)
    except (ValueError, RuntimeError):
        return None
    return GrammarCompiler(tokenizer, vocabulary)
