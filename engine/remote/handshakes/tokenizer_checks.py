"""Steps of the handshake that compare the engine's tokenizer with the one here. They return warnings."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.engine.remote.backend_apis.base import EngineKind
from antiphon.engine.remote.handshakes.queries import ServerQueries, UnsupportedPathError
from antiphon.engine.remote.options import RemoteModel
from antiphon.engine.remote.vocabulary import MAX_BLOCK_IDS


class TokenList(msgspec.Struct):
    """Body of `/tokenize`."""

    tokens: list[int]


class TokenText(msgspec.Struct):
    """Body of `/detokenize`: of vLLM, llama.cpp or SGLang."""

    prompt: str | None = None
    content: str | None = None
    text: str | None = None

    def read_text(self) -> str:
        """Returns the text."""
        return self.prompt or self.content or self.text or ""


class TokenizerChecks:
    """The checks of one server. Each raises `HandshakeError` if a token differs."""

    def __init__(self, queries: ServerQueries, model: RemoteModel, kind: EngineKind, model_name: str) -> None:
        self._queries, self._model, self._kind, self._model_name = queries, model, kind, model_name

    async def compare_text(self) -> list[str]:
        """Compares token ids of a text, so that a prompt means the same there as here."""
        if self._kind == "trtllm":
            return [f"{self._queries.name} has no /tokenize: the tokenizers were not compared"]
        check = self._model.tokenizer_check
        request: dict[str, Any] = {"model": self._model_name, "prompt": check.text, "add_special_tokens": False}
        if self._kind == "llama.cpp":
            request = {"content": check.text, "add_special": False, "parse_special": True}
        theirs = (await self._queries.post_json("/tokenize", request, TokenList)).tokens
        ours = list(check.ids)
        if theirs == ours:
            return []
        place = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            raise self._queries.mismatch(
                f"has another tokenizer: it makes {len(theirs)} tokens of a text, --tokenizer {len(ours)}"
            )
        text = check.decode(ours[place])
        raise self._queries.mismatch(
            f"has another tokenizer: {text!r} (token {place} of the check) is {ours[place]} in --tokenizer "
            f"and {theirs[place]} on the server"
        )

    async def compare_vocabulary(self, max_model_len: int) -> list[str]:
        """Compares every token with the engine's own detokenization."""
        vocabulary = self._model.vocabulary
        if vocabulary is None or self._kind == "trtllm":
            return []
        ids = await asyncio.to_thread(vocabulary.list_ids)

        async def detokenize(tokens: Sequence[int]) -> str:
            request: dict[str, Any] = {"model": self._model_name, "tokens": tokens}
            if self._kind == "sglang":
                request["skip_special_tokens"] = False
            return (await self._queries.post_json("/detokenize", request, TokenText)).read_text()

        try:
            mismatch = await vocabulary.compare(ids, detokenize, min(MAX_BLOCK_IDS, max(max_model_len // 2, 1)))
        except UnsupportedPathError:
            return [f"{self._queries.name} has no /detokenize: its vocabulary was not compared"]
        if mismatch is not None:
            raise self._queries.mismatch(
                f"has another tokenizer: token {mismatch.token} is {mismatch.ours!r} in --tokenizer "
                f"and {mismatch.theirs!r} on the server"
            )
        return []
