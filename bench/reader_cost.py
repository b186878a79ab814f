"""CPU time of a token in the readers of dialects: text, calls of functions, commands and patches."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from antiphon.app.requests.responses import request as responses
from antiphon.harmony.detection.detect import bytes_format
from bench import scripted_server
from tests.serving import scripted_registry

PROMPT_TIME = datetime(2026, 1, 1, tzinfo=UTC)
READER_LENGTHS = (1000, 4000, 16_000)
READER_PREFIXES = {
    "gpt-oss": (
        "<|channel|>final<|message|>",
        '<|channel|>commentary to=functions.write <|constrain|>json<|message|>{"text": "',
        '<|channel|>commentary to=functions.shell <|constrain|>json<|message|>{"commands": ["',
        "<|channel|>commentary to=functions.apply_patch<|message|>*** Begin Patch\n*** Add File: a\n+",
    ),
    "hermes": (
        "",
        '<tool_call>\n{"name": "write", "arguments": {"text": "',
        '<tool_call>\n{"name": "shell", "arguments": {"commands": ["',
        "<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n*** Add File: a\n+",
    ),
    "qwen3-coder": (
        "",
        "<tool_call>\n<function=write>\n<parameter=text>\n",
        '<tool_call>\n<function=shell>\n<parameter=commands>\n["',
        "<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n*** Add File: a\n+",
    ),
}
"""Start of a text message, of a call with a long text argument, of a long command and of a long patch, by dialect."""
READER_KINDS = ("text", "tool call", "shell call", "patch")


def measure_cpu(function: Callable[[], None]) -> float:
    """Returns the CPU seconds that a call takes in this process."""
    start = time.process_time()
    function()
    return time.process_time() - start


def measure_dialects() -> dict[tuple[str, int], float]:
    """Returns CPU microseconds per token to parse output token by token, by (dialect and kind of output, length)."""
    costs = {}
    registry = scripted_registry([{"name": "x", "output": ["x"]}])
    write = {"type": "function", "name": "write", "parameters": {"properties": {"text": {"type": "string"}}}}
    body = {"model": "scripted", "input": "Hi", "tools": [write]}
    plain = responses.read_responses_request(body, registry)
    builtin = responses.read_responses_request(
        {**body, "tools": [write, {"type": "shell"}, {"type": "apply_patch"}]}, registry
    )
    for dialect, prefixes in READER_PREFIXES.items():
        model_format = bytes_format(dialect)
        prompt = model_format.render_prompt(plain.spec.prompt_input, now=PROMPT_TIME)
        for kind, prefix in zip(READER_KINDS, prefixes, strict=True):
            request = plain if kind in ("text", "tool call") else builtin
            for length in READER_LENGTHS:
                tokens = model_format.encode(prefix + "".join(scripted_server.WORDS) * length)[:length]
                reader = model_format.create_reader(prompt, request.spec.prompt_input)

                def feed_tokens(reader: Any = reader, tokens: Sequence[int] = tokens) -> None:
                    for token in tokens:
                        reader.feed((token,))

                costs[f"{dialect}, {kind}", length] = measure_cpu(feed_tokens) / length * 1e6
    return costs
