"""A model for fake servers: the scores of the next token are a function of all tokens so far.

So a job that continues elsewhere has the same output exactly if the server gets the same tokens.
"""

import zlib
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llguidance import LLMatcher

from tests.engine.remote.fake_server import Pause, Reply, sse, vllm_tokens, vllm_usage
from tests.engine.remote.remote_helpers import (
    EOS,
    HELLO,
    load_tokenizer,
)

VOCAB_SIZE = 1024
LAPSES = 0.25
"""Share of the places at which the model of a grammar wants anything but the grammar."""


class HashingModel:
    """Answers jobs like vLLM, at temperature 0. With a grammar, it mostly wants the tokens of that one.

    `prompt_length`: number of tokens before the output of a job.
    """

    def __init__(self, grammar: str | None = None, prompt_length: int = len(HELLO), delay_s: float = 0.0) -> None:
        self._grammar, self._prompt_length, self._delay_s = grammar, prompt_length, delay_s
        self.num_masked = 0
        """Requests with a grammar for one token."""

    def generate(self, ids: Sequence[int], max_tokens: int, grammar: str | None) -> list[int]:
        """Returns the output behind these tokens, which the grammar restricts."""
        matcher = None if grammar is None else _compile(grammar)
        wanted = None if self._grammar is None else _compile(self._grammar)
        if wanted is not None:
            wanted.consume_tokens(list(ids[self._prompt_length :]))
        whole = [*ids]
        while len(whole) < len(ids) + max_tokens:
            scores = self._score(whole, wanted)
            if matcher is not None:
                scores[~_find_allowed(matcher)] = -1.0
            token = int(np.argmax(scores))
            whole.append(token)
            if token == EOS:
                break
            for follower in (matcher, wanted):
                if follower is not None and not follower.consume_token(token):
                    return whole[len(ids) :]  # nobody reads on
        return whole[len(ids) :]

    def answer(self, body: dict[str, Any]) -> Reply:
        """Returns the reply to the body of a request."""
        grammar = (body.get("structured_outputs") or {}).get("grammar")
        self.num_masked += grammar is not None and grammar.startswith("start: <[")
        tokens = self.generate(body["prompt"], body["max_tokens"], grammar)
        *first, last = [
            vllm_tokens(token, logprobs=_write_logprobs(token) if "logprobs" in body else None) for token in tokens
        ]
        if tokens[-1] != EOS and len(tokens) < body["max_tokens"]:
            return Reply([*sse(*first, last, end=False), Pause()], part_delay_s=self._delay_s)
        last["choices"][0]["finish_reason"] = "stop" if tokens[-1] == EOS else "length"
        return Reply(sse(*first, last, vllm_usage(len(body["prompt"]))), part_delay_s=self._delay_s)

    def _score(self, ids: Sequence[int], wanted: LLMatcher | None) -> Any:
        random = np.random.default_rng(zlib.crc32(array("i", ids).tobytes()))
        lapse, scores = random.random() < LAPSES, random.random(VOCAB_SIZE)
        if wanted is None:
            scores[EOS] = 0.0
        elif not lapse:
            scores += _find_allowed(wanted)
        return scores


def _write_logprobs(token: int) -> dict[str, Any]:
    name = f"token_id:{token}"
    return {"tokens": [name], "token_logprobs": [-token / 1000], "top_logprobs": [{name: -token / 1000}]}


def _compile(grammar: str) -> LLMatcher:
    return _compile_once(grammar).deep_copy()


@cache
def _compile_once(grammar: str) -> LLMatcher:
    matcher = LLMatcher(load_tokenizer(), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def _find_allowed(matcher: LLMatcher) -> Any:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return bits[:VOCAB_SIZE].astype(bool)


GRAMMAR = r"""
start: "{\"city\": \"" /[A-Z][a-z]{2,9}/ "\", \"days\": " /[1-9][0-9]{0,2}/ ", \"unit\": \"" ("metric" | "imperial") "\"}"
"""
