"""OLMo 3 and LFM2: calls as Python would write them, in markers of their own."""

from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.pythonic import PythonFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

OLMO3 = Dialect(
    name="olmo3",
    models="OLMo 3",
    signs=("<function_calls>",),
    think=("<think>", "</think>"),
    frames=(
        PythonFrame(open="<function_calls>", close="</function_calls>", apart="\n", brackets=False),
        RawFrame(open="<function_calls>", close="</function_calls>"),
    ),
    raw=freeform.raw("<function_calls>", "</function_calls>"),
    lesson=freeform.lesson("<function_calls>", "</function_calls>"),
)
LFM2 = Dialect(
    name="lfm2",
    models="LFM2",
    signs=("<|tool_call_start|>",),
    think=("<think>", "</think>"),
    frames=(
        PythonFrame(open="<|tool_call_start|>", close="<|tool_call_end|>"),
        RawFrame(open="<|tool_call_start|>", close="<|tool_call_end|>"),
    ),
    raw=freeform.raw("<|tool_call_start|>", "<|tool_call_end|>"),
    lesson=freeform.lesson("<|tool_call_start|>", "<|tool_call_end|>"),
)
PYTHONIC = Dialect(
    name="pythonic",
    models="any that writes [add(a=1)] and nothing around it",
    think=("<think>", "</think>"),
    frames=(PythonFrame(open="["),),
)
