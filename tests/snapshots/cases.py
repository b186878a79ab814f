"""Snapshot cases: the output of a model, and the request fields that differ from the default request.

Each case is read through all four APIs; `snapshots/` has one file a case with the readings. A case is named after the
behavior that it shows.
"""

from dataclasses import dataclass, field
from typing import Any

from antiphon.state.drafts import ReasoningOutput

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [{**RUN, "name": "spawn"}]}
TOOLS = [WEATHER, RUN, PATCH, AGENTS]

WEATHER_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
RUN_CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls -la"}}\n</tool_call>'


@dataclass(frozen=True)
class Case:
    """A model output and its request. `request` is added to all bodies, `responses`, `chat`, `messages` to one each."""

    name: str
    output: list[Any]
    """Steps of the script: texts, pauses, stalls and faults."""
    comment: str = ""
    """Shown in the snapshot's title."""
    dialect: str = "hermes"
    finish: str = "stop"
    step: int = 0
    """Tokens of a chunk of the engine. 0: one chunk for each text of `output`."""
    request: dict[str, Any] = field(default_factory=dict)
    responses: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)
    cancel: bool = False
    """The turn is cancelled after the script has stalled."""
    refused: bool = False
    """The reply is an HTTP error."""
    fails: bool = False
    """The response ends as failed. An unstreamed chat reply is then an HTTP error."""
    faces: tuple[str, ...] = ("responses", "chat")
    """Endpoints through which the case is read."""
    reasoning_output: ReasoningOutput = "content"
    """Setting of the server."""
    patch_diffs: bool = False
    """Setting of the server."""
    cached_tokens: int = 0
    """Prompt tokens that the engine reports as read from its cache."""
    chars_before_refusal: int | None = None
    """The dialect's reader says so many characters, and refuses with the later ones. No shipped dialect knows refusals."""
    summary: list[Any] | None = None
    """Steps of the reply to the request for a summary, if the turn asks for one before its answer."""
    waits: bool = False
    """The engine is busy until the turn has been reported as queued and one keepalive has been sent."""


FAULT = {"fault": "the accelerator is on fire", "code": "server_error"}

CASES = [
    # Ordinary outputs
    Case("text", ["Hello", " there", "!"]),
    Case("reasoning_then_text", ["<think>\nA greeting", " is due.", "\n</think>\n\n", "Hello."]),
    Case("reasoning_then_call", ["<think>\nLook it up.\n</think>\n\n", WEATHER_CALL]),
    Case("text_then_call", ["Let me look.\n\n", WEATHER_CALL]),
    Case("reasoning_text_and_two_calls", ["<think>\nBoth.\n</think>\n\nBoth:\n\n", WEATHER_CALL, "\n", RUN_CALL],
         "line feeds around calls are held, then dropped"),
    Case("call_in_many_pieces", ["<tool_call>\n", '{"name": "run", "argu', 'ments": {"cmd": "echo ', "'a", "b'", '"', "}}", "\n</tool_call>"]),
    Case("call_without_arguments", ['<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>']),
    Case("reasoning_again_after_a_call", ["<think>\nFirst.\n</think>\n\n", WEATHER_CALL, "\n<think>\nSecond.\n</think>\n\n", RUN_CALL],
         "the second reasoning is an item of its own"),
    Case("namespaced_call", ['<tool_call>\n{"name": "agents__spawn", "arguments": {"cmd": "x"}}\n</tool_call>'],
         "the model says the flat name, the client gets name and namespace"),
    Case("custom_call_in_the_json_spelling", ['<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n+caf\\u00e9"}}\n</tool_call>'],
         "unescaped as it comes"),
    Case("custom_call_in_its_raw_frame", ["<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n", '+"quoted" \\n', "\n</custom>\n</tool_call>"],
         "raw text, without escapes"),
    Case("end_marker_inside_a_custom_input", ["<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n", "+a </tool_call> and", " a </custom> inside", "\n</custom>\n</tool_call>"],
         "only both end markers in a row end the input"),
    Case("tagged_call", ["<think>\nHm.\n</think>\n\n", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs", 'lo "N"\n</parameter>\n<parameter=days>\n', "3\n</parameter>\n</function>\n</tool_call>"],
         "strings stream as they come, numbers when they close", dialect="qwen3-coder"),
    Case("commentary_then_final", ["<|channel|>commentary<|message|>Looking…<|end|>", "<|start|>assistant<|channel|>final<|message|>Sunny.<|return|>"],
         "two messages, each with its phase", dialect="gpt-oss"),
    Case("harmony_analysis_then_call", ["<|channel|>analysis<|message|>Need the weather.<|end|>", '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>'],
         dialect="gpt-oss"),
    Case("log_probabilities", ["Hi", " you"], request={"top_logprobs": 1}, responses={"include": ["message.output_text.logprobs"]}, chat={"logprobs": True}),
    Case("stop_string", ["One. Two. ", "STO", "P Three."], request={"stop": ["STOP"]}, comment="nothing of the stop string is said"),
    Case("half_a_stop_string", ["One. ", "STO", "RE"], request={"stop": ["STOP"]}, comment="what is not one after all is said"),
    # Hard cases: cut output, errors, cancellation, malformed output
    Case("token_limit_inside_a_message", ["Half a sen "], finish="length"),
    Case("token_limit_inside_reasoning", ["<think>\nHalf a thou\n"], finish="length"),
    Case("token_limit_inside_a_call", ["I run it.", '<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -r'], finish="length",
         comment="half a call is kept, and never done"),
    Case("engine_fault_inside_a_message", ["Half a sen", FAULT], fails=True),
    Case("engine_fault_inside_a_call", ['<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -r', FAULT], fails=True),
    Case("engine_fault_before_anything_was_said", [FAULT], fails=True),
    Case("engine_refuses", [{"refuse": "too many requests are waiting", "code": "server_is_overloaded", "retryable": True}], refused=True),
    Case("cancelled_inside_a_message", ["Half a sen", {"stall": True}], cancel=True),
    Case("cancelled_inside_reasoning", ["<think>\nHalf a thou", {"stall": True}], cancel=True),
    Case("cancelled_inside_a_call", ['<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -r', {"stall": True}], cancel=True),
    Case("end_of_turn_inside_arguments", ['<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -r'],
         comment="the model stopped inside a call: loud, so that an agent tries again", fails=True),
    Case("nothing_generated", []),
    Case("blanks_only", ["\n", " \n"]),
    Case("blanks_only_at_the_token_limit", ["\n", " \n"], finish="length"),
    Case("reasoning_only", ["<think>\nHm.\n</think>\n\n"]),
    Case("tool_text_that_does_not_parse", ['<tool_call>\n{"nam": "run"}\n</tool_call> was that right?'], comment="shown as text"),
    Case("tool_that_was_not_offered", ['<tool_call>\n{"name": "launch", "arguments": {}}\n</tool_call>'], comment="a call, which agents answer with an error"),
    Case("marker_under_tool_choice_none", [RUN_CALL], request={"tool_choice": "none"}, comment="shown as text"),
    Case("second_call_when_parallel_calls_are_off", [WEATHER_CALL, "\n", RUN_CALL, " and more"], request={"parallel_tool_calls": False},
         comment="the turn stops after the first whole call"),
    Case("functions_beyond_max_tool_calls", [WEATHER_CALL, RUN_CALL, WEATHER_CALL], responses={"max_tool_calls": 2},
         comment="the limit counts calls that the server runs, so it does not count these"),
    Case("call_inside_reasoning", ["<think>\nI just call it. ", RUN_CALL], comment="a call ends reasoning by itself"),
    Case("two_thinking_openers", ["<think>\n<think>\nHm.\n</think>\n\nYes."]),
    Case("closing_marker_inside_a_string", ['<tool_call>\n{"name": "run", "arguments": {"cmd": "echo </tool_call>"}}\n</tool_call>']),
    Case("unicode_in_arguments", ['<tool_call>\n{"name": "run", "arguments": {"cmd": "écho 😀 \\ud83d\\ude00"}}\n</tool_call>']),
]  # fmt: skip
