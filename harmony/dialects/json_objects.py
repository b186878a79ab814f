"""Dialects that write one JSON object per call between markers: InternLM, LongCat, ERNIE; and Step 3's tags."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.json_object import JsonCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

THINK = ("<think>", "</think>")

INTERNLM = Dialect(
    name="internlm",
    models="InternLM 2.5, 3",
    template_markers=("<|action_start|>",),
    calls=(JsonCall(open="<|action_start|><|plugin|>", close="<|action_end|>", arguments=("parameters", "arguments")),),
    freeform=("<|action_start|><|plugin|>", "<|action_end|>"),
)
LONGCAT = Dialect(
    name="longcat",
    models="LongCat",
    template_markers=("<longcat_tool_call>",),
    think=("<longcat_think>", "</longcat_think>"),
    calls=(JsonCall(open="<longcat_tool_call>", close="</longcat_tool_call>"),),
    stop=("</longcat_s>",),
    freeform=("<longcat_tool_call>", "</longcat_tool_call>"),
)
ERNIE = Dialect(
    name="ernie",
    models="ERNIE 4.5",
    template_markers=("<tool_call>", "<response>"),
    think=THINK,
    answer=("<response>", "</response>"),
    calls=(JsonCall(open="<tool_call>", close="</tool_call>"),),
    stop=("<|im_end|>", "</s>"),
    freeform=("<tool_call>", "</tool_call>"),
)
STEP3 = Dialect(
    name="step3",
    models="Step 3",
    template_markers=("<steptml:invoke",),
    think=THINK,
    calls=(
        CallBlock(
            open="<｜tool_calls_begin｜>",
            close="<｜tool_calls_end｜>",
            calls=(
                XmlTagCall(
                    open="<｜tool_call_begin｜>function<｜tool_sep｜>",
                    close="<｜tool_call_end｜>",
                    head="<steptml:invoke name=",
                    foot="</steptml:invoke>",
                    key="<steptml:parameter name=",
                    value_end="</steptml:parameter>",
                    quote='"',
                    gap="",
                    outer_closers=("<｜tool_calls_end｜>",),
                ),
            ),
        ),
    ),
    stop=("<｜EOT｜>", "<｜end▁of▁sentence｜>"),
)
