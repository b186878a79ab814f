"""The process that compiles client-given grammars. Run with `python -P -m antiphon.app.sandbox.grammar_worker`."""

from functools import cache

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from antiphon.app.sandbox.messages import CheckRequest, GrammarKind, MemoryProbe, WorkerLimits
from antiphon.app.sandbox.worker import Answer, Handle, run_worker, take_memory

GRAMMAR_LIMITS = LLParserLimits(max_grammar_size=200_000, verbose_errors=False)


def find_fault(kind: GrammarKind, source: str) -> str:
    """Returns the reason why no output can match a grammar; empty if it is valid."""
    try:
        if kind == "schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        else:
            build_grammar = LLMatcher.grammar_from_lark if kind == "lark" else LLMatcher.grammar_from_regex
            grammar = build_grammar(source)
        matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=GRAMMAR_LIMITS)
        token_mask = matcher.compute_bitmask()  # the only call that detects rules that never terminate
    except ValueError as error:
        return str(error)
    if matcher.is_error():
        return str(matcher.get_error())
    return "" if any(token_mask) else "no output can match it"


class _ByteTokenizer:
    """A vocabulary of single bytes. The validity of a grammar does not depend on the model's tokenizer."""

    tokens = [*(bytes([value]) for value in range(256)), b"<end>"]  # noqa: RUF012  # never mutated
    special_token_ids = [256]  # noqa: RUF012
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokenizer()))


def _prepare() -> Handle:
    _byte_tokenizer()
    decode = msgspec.msgpack.Decoder(CheckRequest | MemoryProbe).decode

    def handle(header: bytes, _payload: bytes) -> Answer:
        request = decode(header)
        if isinstance(request, MemoryProbe):
            take_memory(WorkerLimits().memory_bytes)
            return b"", b"", None
        return find_fault(request.kind, request.source).encode("utf-8", "replace"), b"", None

    return handle


if __name__ == "__main__":
    run_worker(_prepare, WorkerLimits())
