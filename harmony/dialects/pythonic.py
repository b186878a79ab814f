"""OLMo 3 and LFM2: calls in Python syntax between markers. `pythonic`: the same as a bare list."""

from antiphon.harmony.calls.pythonic import PythonicCall
from antiphon.harmony.calls.raw_text import RawTextCall
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

OLMO3 = Dialect(
    name="olmo3",
    models="OLMo 3",
    template_markers=("<function_calls>",),
    think=("<think>", "</think>"),
    calls=(
        PythonicCall(open="<function_calls>", close="</function_calls>", separator="\n", brackets=False),
        RawTextCall(open="<function_calls>", close="</function_calls>"),
    ),
    freeform_call=freeform.write_call("<function_calls>", "</function_calls>"),
    freeform_instructions=freeform.write_instructions("<function_calls>", "</function_calls>"),
)
LFM2 = Dialect(
    name="lfm2",
    models="LFM2, LFM2.5",
    template_markers=("<|tool_call_start|>",),
    other_template_markers=(("<|tool_list_start|>",),),
    vocabulary_markers=("<|tool_call_start|>",),
    model_types=("lfm2", "lfm2_moe"),
    think=("<think>", "</think>"),
    calls=(
        PythonicCall(open="<|tool_call_start|>", close="<|tool_call_end|>"),
        RawTextCall(open="<|tool_call_start|>", close="<|tool_call_end|>"),
    ),
    freeform_call=freeform.write_call("<|tool_call_start|>", "<|tool_call_end|>"),
    freeform_instructions=freeform.write_instructions("<|tool_call_start|>", "<|tool_call_end|>"),
)
PYTHONIC = Dialect(
    name="pythonic",
    models="any that writes [add(a=1)] and nothing around it",
    think=("<think>", "</think>"),
    calls=(PythonicCall(open="["),),
)
