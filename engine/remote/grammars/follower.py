"""Follows an engine's output with our own matcher, so that no output outside its grammar is shown.

A remote engine may drop a grammar silently, for example until the end of the reasoning. The matcher costs about a
microsecond per token.
"""

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from antiphon.engine.grammar_limits import MAX_COMPILED_GRAMMARS, PARSER_LIMITS
from antiphon.engine.protocol import EngineError
from antiphon.engine.remote.backend_apis.base import GrammarSyntax, JobTarget
from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.translator import translate_grammar
from antiphon.engine.remote.grammars.lowering import lower_syntax

log = logging.getLogger(__name__)


class GrammarFollower:
    """Follows the output of one turn."""

    def __init__(self, matcher: LLMatcher, stop_ids: Iterable[int]) -> None:
        self._matcher, self._stop_ids = matcher, frozenset(stop_ids)

    @property
    def is_complete(self) -> bool:
        """True if the output may end here."""
        return self._matcher.is_accepting()

    @property
    def is_exhausted(self) -> bool:
        """True if the output is complete, and nothing but a stop token may follow."""
        return self.is_complete and not self._list_others()

    def accept_tokens(self, tokens: Sequence[int]) -> int:
        """Returns the number of tokens up to the first one that the grammar does not allow, and follows these.

        A stop token is allowed at the end of the grammar, and where the grammar has nothing else.
        """
        matcher = self._matcher
        output = list(itertools.takewhile(lambda token: token not in self._stop_ids, tokens))
        count = 0 if matcher.is_stopped() else matcher.validate_tokens(output)
        if count:
            matcher.consume_tokens(output[:count])
        is_at_stop_token = count == len(output) < len(tokens)
        return count + (is_at_stop_token and (matcher.is_accepting() or tokens[count] in self.list_allowed()))

    def list_allowed(self, *, may_end: bool = True) -> list[int]:
        """Returns the tokens that the grammar allows next, in ascending order, with stop tokens at its end.

        Unless the output `may_end`, it ends only if the grammar has nothing else. A stop token of the grammar itself is
        allowed where it has nothing else, too.
        """
        others = self._list_others()
        if self.is_complete and (may_end or not others):
            return sorted(others | self._stop_ids)
        return sorted(others or self._list_own())

    def _list_others(self) -> set[int]:
        """Returns the tokens that the grammar allows next, without stop tokens."""
        return self._list_own() - self._stop_ids

    def _list_own(self) -> set[int]:
        mask = b"" if self._matcher.is_stopped() else self._matcher.compute_bitmask()
        return {8 * index + bit for index, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


class PreparedGrammar:
    """A compiled grammar, the text that is sent to the engine, and tokens that it must not generate."""

    def __init__(self, matcher: LLMatcher, text: str, banned_ids: tuple[int, ...] = ()) -> None:
        self._matcher = matcher
        self._text, self._banned_ids = text, banned_ids

    def apply_to(self, target: JobTarget) -> JobTarget:
        """Returns the values of a request with this grammar."""
        banned = tuple(token for token in self._banned_ids if token not in target.stop_ids)
        return msgspec.structs.replace(target, grammar=self._text, banned_ids=banned)

    def create_follower(self, stop_ids: Iterable[int]) -> GrammarFollower:
        """Returns a follower at the first token."""
        return GrammarFollower(self._matcher.deep_copy(), stop_ids)

    def continue_follower(self, stop_ids: Iterable[int], generated: Sequence[int]) -> GrammarFollower:
        """Returns a follower behind these tokens. Raises `EngineError` if the grammar does not allow them."""
        follower = self.create_follower(stop_ids)
        if follower.accept_tokens(generated) < len(generated):
            raise EngineError("invalid_request", "the grammar does not allow the tokens that were generated before")
        return follower


class GrammarFollowers:
    """Prepares grammars for one model. Loads the tokenizer, compiles and translates grammars in threads.

    `relax_grammar` returns the grammar to follow, which allows what engines with an older library generate.
    `added_tokens`: texts of the tokens that grammars match by id only.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocab_size: int,
        eos_ids: Iterable[int],
        relax_grammar: Callable[[str], str] = str,
        added_tokens: Mapping[int, str] | None = None,
    ) -> None:
        self._relax_grammar, self._added_tokens = relax_grammar, added_tokens or {}
        self._file, self._vocab_size, self._eos_ids = tokenizer_file, vocab_size, list(eos_ids)
        self._tokenizer: asyncio.Future[LLTokenizer] | None = None
        self._prepared: OrderedDict[tuple[GrammarSyntax, str], PreparedGrammar] = OrderedDict()

    async def prepare_grammar(self, grammar: str, syntax: GrammarSyntax = "lark") -> PreparedGrammar:
        """Returns a grammar for an engine that reads this syntax.

        Raises `EngineError`: `invalid_request` for an invalid grammar, `grammar_unsupported` if it cannot be said.
        """
        place = (syntax, grammar)
        prepared = self._prepared.get(place)
        if prepared is not None:
            self._prepared.move_to_end(place)
            return prepared
        tokenizer = await self._load_tokenizer()
        prepared = self._prepared[place] = await asyncio.to_thread(self._prepare, tokenizer, grammar, syntax)
        if len(self._prepared) > MAX_COMPILED_GRAMMARS:
            self._prepared.popitem(last=False)
        return prepared

    def _prepare(self, tokenizer: LLTokenizer, grammar: str, syntax: GrammarSyntax) -> PreparedGrammar:
        matcher = LLMatcher(tokenizer, self._relax_grammar(grammar), log_level=0, limits=PARSER_LIMITS)
        if matcher.is_error():
            log.info("a grammar cannot be compiled: %s", matcher.get_error()[:300])
            raise EngineError("grammar_unsupported", "the grammar that this field needs cannot be compiled")
        if syntax == "lark":
            return PreparedGrammar(matcher, lower_syntax(grammar))
        try:
            translated = translate_grammar(grammar, self._added_tokens)
        except UntranslatableError as error:
            message = f"the engine is llama.cpp without llguidance, whose grammars (GBNF) cannot say this: {error}"
            raise EngineError("grammar_unsupported", message) from None
        banned = (token for token in self._added_tokens if token not in translated.token_ids)
        return PreparedGrammar(matcher, translated.text, tuple(banned))

    async def _load_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = asyncio.ensure_future(asyncio.to_thread(self._read_tokenizer))
        try:
            return await asyncio.shield(self._tokenizer)
        except (ValueError, RuntimeError, OSError) as error:
            self._tokenizer = None  # the next job tries again
            log.warning("the tokenizer for grammars cannot be loaded: %s", error)
            raise EngineError("grammar_unsupported", "grammars need a tokenizer.json that can be loaded") from None

    def _read_tokenizer(self) -> LLTokenizer:
        return LLTokenizer(str(self._file), n_vocab=self._vocab_size, eos_token=self._eos_ids or None)
