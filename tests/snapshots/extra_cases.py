"""Cases beyond one plain turn through both endpoints: they need a history, a setting, a busy engine or one endpoint.

The clients' tests play the ordinary cases only.
"""

import json
from typing import Any

from tests.snapshots.cases import WEATHER_CALL, Case

QUESTION = {"role": "user", "content": "How is the weather?"}
ARGUMENTS = json.dumps({"city": "Oslo"})
COHERE_HISTORY = [
    QUESTION,
    {"type": "function_call", "call_id": "call_history", "name": "get_weather", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "call_history", "output": "4 degrees, wet"},
]
COHERE_MESSAGES: list[dict[str, Any]] = [
    QUESTION,
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "call_history", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_history", "content": "4 degrees, wet"},
]
COHERE_TURNS: list[dict[str, Any]] = [
    QUESTION,
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "call_history", "name": "get_weather", "input": {"city": "Oslo"}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call_history", "content": "4 degrees, wet"}],
    },
]
COHERE_CALL = '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|>'
BEGUN = {"role": "assistant", "content": "Once upon"}
THOUGHT = "<think>\nA greeting is due.\n</think>\n\n"
SEALED = {"include": ["reasoning.encrypted_content"], "store": False}

EXTRA_CASES = [
    Case("refusal", ["I cannot", " do that."], "a reader that refuses", chars_before_refusal=0),
    Case("text_then_refusal", ["Let me see. ", "No: I cannot", " do that.\n"], "the refusal is a part of its own", chars_before_refusal=12),
    Case("citation", ["<|START_RESPONSE|>It is ", "<co>4 degrees </co: 0:[0]>", "and <co>wet</co: 0:[0]>.", "<|END_RESPONSE|>"],
         "a source of the text, without the markers and the blank before one", dialect="cohere",
         responses={"input": COHERE_HISTORY}, chat={"messages": COHERE_MESSAGES}, messages={"messages": COHERE_TURNS}),
    Case("citation_after_a_call", ["<|START_RESPONSE|>I ask.<|END_RESPONSE|>", COHERE_CALL, "<|START_RESPONSE|>It is <co>wet</co: 0:[0]>.<|END_RESPONSE|>"],
         "its place counts from the start of its own text", dialect="cohere",
         responses={"input": COHERE_HISTORY}, chat={"messages": COHERE_MESSAGES}, messages={"messages": COHERE_TURNS}),
    Case("background_with_a_keepalive", ["Hello."], "queued, reported again, then run", responses={"background": True},
         faces=("responses",), waits=True),
    Case("sealed_reasoning", [THOUGHT, "Hello."], "what is encrypted is shown here in plain text", responses=SEALED, faces=("responses",)),
    Case("sealed_reasoning_before_a_call", [THOUGHT, WEATHER_CALL], responses=SEALED, faces=("responses",)),
    Case("compaction", ["<think>\nWhat matters?\n</think>\n\n", "They said", " hello.\n"], "one item, whose text is encrypted",
         responses={"input": [QUESTION, {"type": "compaction_trigger"}], "tools": []}, faces=("responses",)),
    Case("two_choices", ["<think>\nHm.\n</think>\n\n", "Hello", " there."], chat={"n": 2}, faces=("chat",)),
    Case("continued_message", [" a time", " <think> there was"], "its beginning is in the prompt, so a reasoning marker is text",
         chat={"messages": [QUESTION, BEGUN], "continue_final_message": True}, faces=("chat",)),
    Case("reasoning_as_a_summary", [THOUGHT, "Hello."], reasoning_output="summary"),
    Case("reasoning_as_both", [THOUGHT, "Hello."], "the raw part follows when the reasoning closes", reasoning_output="both"),
    Case("cached_prompt", ["Hello."], cached_tokens=500),
    Case("log_probabilities_of_trailing_blanks", ["Hi", "\n", "\n"], request={"top_logprobs": 2},
         responses={"include": ["message.output_text.logprobs"]}, chat={"logprobs": True}),
]  # fmt: skip
