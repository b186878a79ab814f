"""FunctionGemma and Gemma 4: an object notation of their own, with marks around strings."""

from harmony.calllike import LaxFrame
from harmony.dialect import Dialect

GEMMA4 = Dialect(
    name="gemma4",
    models="Gemma 4",
    signs=("<|tool_call>",),
    think=("<|channel>thought\n", "<channel|>"),
    frames=(LaxFrame(open="<|tool_call>", close="<tool_call|>"),),
    stop=("<turn|>", "<end_of_turn>", "<eos>"),
)
FUNCTIONGEMMA = Dialect(
    name="functiongemma",
    models="FunctionGemma",
    signs=("<start_function_call>",),
    frames=(LaxFrame(open="<start_function_call>", close="<end_function_call>", quote="<escape>"),),
    stop=("<end_of_turn>", "<eos>"),
)
