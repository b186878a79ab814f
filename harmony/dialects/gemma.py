"""FunctionGemma and Gemma 4: an object notation of their own, with marks around strings."""

from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.pythonic import LaxFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

GEMMA4 = Dialect(
    name="gemma4",
    models="Gemma 4",
    signs=("<|tool_call>",),
    think=("<|channel>thought\n", "<channel|>"),
    frames=(LaxFrame(open="<|tool_call>", close="<tool_call|>"), RawFrame(open="<|tool_call>", close="<tool_call|>")),
    stop=("<turn|>", "<end_of_turn>", "<eos>"),
    raw=freeform.raw("<|tool_call>", "<tool_call|>"),
    lesson=freeform.lesson("<|tool_call>", "<tool_call|>"),
)
FUNCTIONGEMMA = Dialect(
    name="functiongemma",
    models="FunctionGemma",
    signs=("<start_function_call>",),
    frames=(
        LaxFrame(open="<start_function_call>", close="<end_function_call>", quote="<escape>"),
        RawFrame(open="<start_function_call>", close="<end_function_call>"),
    ),
    stop=("<end_of_turn>", "<eos>"),
    raw=freeform.raw("<start_function_call>", "<end_function_call>"),
    lesson=freeform.lesson("<start_function_call>", "<end_function_call>"),
)
