"""OLMo 3 and LFM2: calls in Python syntax between markers. `pythonic`: the same as a bare list."""

from antiphon.harmony.calls.pythonic import PythonicCall
from antiphon.harmony.dialect import Dialect

OLMO3 = Dialect(
    name="olmo3",
    models="OLMo 3",
    template_markers=("<function_calls>",),
    think=("<think>", "</think>"),
    calls=(PythonicCall(open="<function_calls>", close="</function_calls>", separator="\n", brackets=False),),
    freeform=("<function_calls>", "</function_calls>"),
)
LFM2 = Dialect(
    name="lfm2",
    models="LFM2, LFM2.5",
    template_markers=("<|tool_call_start|>",),
    other_template_markers=(("<|tool_list_start|>",),),
    vocabulary_markers=("<|tool_call_start|>",),
    model_types=("lfm2", "lfm2_moe"),
    think=("<think>", "</think>"),
    calls=(PythonicCall(open="<|tool_call_start|>", close="<|tool_call_end|>"),),
    freeform=("<|tool_call_start|>", "<|tool_call_end|>"),
)
PYTHONIC = Dialect(
    name="pythonic",
    models="any that writes [add(a=1)] and nothing around it",
    think=("<think>", "</think>"),
    calls=(PythonicCall(open="["),),
)
