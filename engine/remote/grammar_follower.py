"""Follows an engine's output with our own matcher, so that no output outside its grammar is shown.

A remote engine may drop a grammar silently, for example until the end of the reasoning. The matcher costs about a
microsecond per token.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from antiphon.engine.protocol import EngineError

MAX_COMPILED_GRAMMARS = 64
"""Maximum number of compiled grammars kept for later requests. Agents send the same tools with every turn."""


class GrammarFollower:
    """Follows the output of one turn."""

    def __init__(self, matcher: LLMatcher, stop_ids: Iterable[int]) -> None:
        self._matcher, self._stop_ids = matcher, frozenset(stop_ids)

    @property
    def is_complete(self) -> bool:
        """True if the output may end here."""
        return self._matcher.is_accepting()

    def accept_tokens(self, tokens: Sequence[int]) -> bool:
        """Returns false if the grammar does not allow one of the tokens. A stop token is allowed at its end only."""
        matcher = self._matcher
        for token in tokens:
            if token in self._stop_ids:
                return matcher.is_accepting()
            if matcher.is_stopped() or not matcher.consume_token(token):
                return False
        return True


class GrammarFollowers:
    """Creates followers for one model. Loads the tokenizer and compiles grammars in threads.

    ``relax_grammar`` returns the grammar to follow, which allows what engines with an older library generate.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocab_size: int,
        eos_ids: Iterable[int],
        relax_grammar: Callable[[str], str] = str,
    ) -> None:
        self._relax_grammar = relax_grammar
        self._file, self._vocab_size, self._eos_ids = tokenizer_file, vocab_size, list(eos_ids)
        self._tokenizer: asyncio.Future[LLTokenizer] | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    async def create_follower(self, grammar: str, stop_ids: Iterable[int]) -> GrammarFollower:
        """Returns a follower at the first token. Raises `EngineError` ``invalid_request`` for an invalid grammar."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            tokenizer = await self._load_tokenizer()
            matcher = await asyncio.to_thread(LLMatcher, tokenizer, self._relax_grammar(grammar), log_level=0)
            if matcher.is_error():
                raise EngineError("invalid_request", f"the grammar is invalid: {matcher.get_error()[:300]}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(grammar)
        return GrammarFollower(matcher.deep_copy(), stop_ids)

    async def _load_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = asyncio.ensure_future(asyncio.to_thread(self._read_tokenizer))
        try:
            return await asyncio.shield(self._tokenizer)
        except (ValueError, RuntimeError, OSError) as error:
            raise EngineError("grammar_unsupported", f"grammars need a tokenizer.json: {error}") from None

    def _read_tokenizer(self) -> LLTokenizer:
        return LLTokenizer(str(self._file), n_vocab=self._vocab_size, eos_token=self._eos_ids or None)
