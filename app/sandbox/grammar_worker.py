"""The process that compiles client-given grammars. Run with `python -P -m antiphon.app.sandbox.grammar_worker`.

It reads requests from standard input and writes a reply to each to standard output, until the input ends. A grammar may
overflow the stack of the native library, allocate without end, or compile for minutes. Each of these kills this
process: the stack is a fraction of the one that the engine compiles with, memory has a limit, and a timer of CPU time
runs during each check.
"""

import resource
import signal
import sys
import threading
from functools import cache
from typing import BinaryIO

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from antiphon.app.sandbox.messages import LENGTH, CheckRequest, GrammarKind

CPU_LIMIT_S = 2.0
"""CPU time of one check."""
STACK_BYTES = 2 << 20
"""Stack of the thread that compiles. The engine's threads have 8 MiB, so a grammar that passes here does not overflow
them, although the engine compiles it as a part of a larger grammar."""
MEMORY_BYTES = 1 << 30
"""Limit of the address space."""
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


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    _byte_tokenizer()
    decode = msgspec.msgpack.Decoder(CheckRequest).decode
    while head := requests.read(LENGTH.size):
        request = decode(requests.read(LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        fault = find_fault(request.kind, request.source)
        signal.setitimer(signal.ITIMER_PROF, 0)
        body = fault.encode("utf-8", "replace")
        replies.write(LENGTH.pack(len(body)) + body)
        replies.flush()


def main() -> None:
    """Sets the limits, then serves until standard input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, sys.stdout.buffer), daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
