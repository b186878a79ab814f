"""Compares the vocabulary of a remote engine with the tokenizer here: every token, by the engine's own detokenization.

A sample text shows another tokenizer, but not two words that changed places. Blanks are left out of the comparison, and
so are tokens that are no complete characters: servers write these in different ways.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # the command line imports this module, and does not wait for the library

MAX_BLOCK_IDS = 4096
"""Maximum number of ids in one request. A large vocabulary has forty blocks."""
MAX_UNEXPLAINED_BLOCKS = 3
"""Blocks that differ although each of their tokens is equal, after which the comparison is given up."""
REPLACEMENT_CHARACTER = "\ufffd"

Detokenize = Callable[[Sequence[int]], Awaitable[str]]
"""Returns the engine's text of token ids."""


class TokenMismatch(msgspec.Struct, frozen=True):
    """A token that means something else to the engine."""

    token: int
    ours: str
    theirs: str


class Vocabulary:
    """The tokens of the tokenizer here, without added ones."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._ids: tuple[int, ...] | None = None

    def list_ids(self) -> tuple[int, ...]:
        """Returns the ids of all tokens that can be compared. The first call decodes every token."""
        if self._ids is None:
            added = self._tokenizer.get_added_tokens_decoder()
            ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=False).values()) - set(added))
            texts = self._tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
            self._ids = tuple(
                token
                for token, text in zip(ids, texts, strict=True)
                if text.strip() and REPLACEMENT_CHARACTER not in text
            )
        return self._ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def find_text(self, before: str, tokens: Sequence[int]) -> str | None:
        """Returns the text of tokens that is encoded as just these behind `before`; None if there is none."""
        text = self.decode(tokens)
        start = self._tokenizer.encode(before, add_special_tokens=False).ids
        whole = self._tokenizer.encode(before + text, add_special_tokens=False).ids
        return text if whole == [*start, *tokens] else None

    async def compare(self, ids: Sequence[int], detokenize: Detokenize, block_tokens: int) -> TokenMismatch | None:
        """Returns the first token that differs; None if all are equal."""
        num_unexplained = 0
        for start in range(0, len(ids), block_tokens):
            block = ids[start : start + block_tokens]
            if await self._is_equal(block, detokenize):
                continue
            if (mismatch := await self._find_mismatch(block, detokenize)) is not None:
                return mismatch
            num_unexplained += 1
            if num_unexplained >= MAX_UNEXPLAINED_BLOCKS:
                break
        return None

    async def _find_mismatch(self, block: Sequence[int], detokenize: Detokenize) -> TokenMismatch | None:
        """Halves a block that differs until a single token does."""
        if len(block) == 1:
            theirs = await detokenize(block)
            return TokenMismatch(block[0], self.decode(block), theirs)
        middle = len(block) // 2
        for half in (block[:middle], block[middle:]):
            if not await self._is_equal(half, detokenize):
                return await self._find_mismatch(half, detokenize)
        return None

    async def _is_equal(self, block: Sequence[int], detokenize: Detokenize) -> bool:
        return _without_blanks(self.decode(block)) == _without_blanks(await detokenize(block))


def _without_blanks(text: str) -> str:
    return "".join(text.replace(REPLACEMENT_CHARACTER, "").split())
