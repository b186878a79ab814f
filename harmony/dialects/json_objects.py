"""Families that write one JSON object for each call, between markers: InternLM, LongCat, ERNIE; and Step 3's tags."""

from antiphon.harmony.calls.json_object import JsonFrame, RawFrame
from antiphon.harmony.calls.section import Section
from antiphon.harmony.calls.xml_tags import TaggedFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

THINK = ("<think>", "</think>")

INTERNLM = Dialect(
    name="internlm",
    models="InternLM 2.5, 3",
    signs=("<|action_start|>",),
    frames=(
        JsonFrame(open="<|action_start|><|plugin|>", close="<|action_end|>", arguments=("parameters", "arguments")),
        RawFrame(open="<|action_start|><|plugin|>", close="<|action_end|>"),
    ),
    raw=freeform.raw("<|action_start|><|plugin|>", "<|action_end|>"),
    lesson=freeform.lesson("<|action_start|><|plugin|>", "<|action_end|>"),
)
LONGCAT = Dialect(
    name="longcat",
    models="LongCat",
    signs=("<longcat_tool_call>",),
    think=("<longcat_think>", "</longcat_think>"),
    frames=(
        JsonFrame(open="<longcat_tool_call>", close="</longcat_tool_call>"),
        RawFrame(open="<longcat_tool_call>", close="</longcat_tool_call>"),
    ),
    stop=("</longcat_s>",),
    raw=freeform.raw("<longcat_tool_call>", "</longcat_tool_call>"),
    lesson=freeform.lesson("<longcat_tool_call>", "</longcat_tool_call>"),
)
ERNIE = Dialect(
    name="ernie",
    models="ERNIE 4.5",
    signs=("<tool_call>", "<response>"),
    think=THINK,
    answer=("<response>", "</response>"),
    frames=(
        JsonFrame(open="<tool_call>", close="</tool_call>"),
        RawFrame(open="<tool_call>", close="</tool_call>"),
    ),
    stop=("<|im_end|>", "</s>"),
    raw=freeform.raw("<tool_call>", "</tool_call>"),
    lesson=freeform.lesson("<tool_call>", "</tool_call>"),
)
STEP3 = Dialect(
    name="step3",
    models="Step 3",
    signs=("<steptml:invoke",),
    think=THINK,
    frames=(
        Section(
            open="<｜tool_calls_begin｜>",
            close="<｜tool_calls_end｜>",
            inside=(
                TaggedFrame(
                    open="<｜tool_call_begin｜>function<｜tool_sep｜>",
                    close="<｜tool_call_end｜>",
                    head="<steptml:invoke name=",
                    foot="</steptml:invoke>",
                    key="<steptml:parameter name=",
                    value_end="</steptml:parameter>",
                    quote='"',
                    gap="",
                    outer=("<｜tool_calls_end｜>",),
                ),
            ),
        ),
    ),
    stop=("<｜EOT｜>", "<｜end▁of▁sentence｜>"),
)
