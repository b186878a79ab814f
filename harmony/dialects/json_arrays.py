"""Families that write all calls of a turn as one JSON array."""

from antiphon.harmony.calls.citations import Citations
from antiphon.harmony.calls.json_array import ArrayFrame, ObjectsFrame
from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

THINK = ("<think>", "</think>")

GRANITE3 = Dialect(
    name="granite3",
    models="Granite 3",
    signs=("<|tool_call|>",),
    think=("Here is my thought process:", "Here is my response:"),
    frames=(ArrayFrame(open="<|tool_call|>"), ArrayFrame(open="<tool_call>"), RawFrame(open="<|tool_call|>", close="")),
    stop=("<|end_of_text|>",),
    raw=freeform.raw("<|tool_call|>", ""),
    lesson=freeform.lesson("<|tool_call|>", ""),
)
PHI4 = Dialect(
    name="phi4-mini",
    models="Phi-4-mini",
    signs=("functools",),
    think=THINK,
    frames=(ArrayFrame(open="functools"), RawFrame(open="functools", close="")),
    stop=("<|end|>", "<|endoftext|>"),
    raw=freeform.raw("functools", ""),
    lesson=freeform.lesson("functools", ""),
)
XLAM = Dialect(
    name="xlam",
    models="xLAM",
    think=THINK,
    frames=(
        ArrayFrame(open="["),
        ArrayFrame(open="[TOOL_CALLS]"),
        ArrayFrame(open="```json", close="```"),
        RawFrame(open="[TOOL_CALLS]", close=""),
    ),
    raw=freeform.raw("[TOOL_CALLS]", ""),
    lesson=freeform.lesson("[TOOL_CALLS]", ""),
)
JAMBA = Dialect(
    name="jamba",
    models="Jamba",
    signs=("<tool_calls>",),
    think=THINK,
    frames=(
        ArrayFrame(open="<tool_calls>", close="</tool_calls>"),
        RawFrame(open="<tool_calls>", close="</tool_calls>"),
    ),
    raw=freeform.raw("<tool_calls>", "</tool_calls>"),
    lesson=freeform.lesson("<tool_calls>", "</tool_calls>"),
)
HUNYUAN = Dialect(
    name="hunyuan",
    models="Hunyuan A13B",
    signs=("<tool_calls>", "<answer>"),
    think=THINK,
    answer=("<answer>", "</answer>"),
    frames=(
        ArrayFrame(open="<tool_calls>", close="</tool_calls>"),
        RawFrame(open="<tool_calls>", close="</tool_calls>"),
    ),
    stop=("<|eos|>",),
    raw=freeform.raw("<tool_calls>", "</tool_calls>"),
    lesson=freeform.lesson("<tool_calls>", "</tool_calls>"),
)
APERTUS = Dialect(
    name="apertus",
    models="Apertus",
    signs=("<|tools_prefix|>",),
    think=("<|inner_prefix|>", "<|inner_suffix|>"),
    frames=(
        ArrayFrame(open="<|tools_prefix|>", close="<|tools_suffix|>", keyed=True),
        RawFrame(open="<|tools_prefix|>", close="<|tools_suffix|>"),
    ),
    stop=("<|assistant_end|>",),
    raw=freeform.raw("<|tools_prefix|>", "<|tools_suffix|>"),
    lesson=freeform.lesson("<|tools_prefix|>", "<|tools_suffix|>"),
)
COHERE = Dialect(
    name="cohere",
    models="Command A, Command R7B",
    signs=("<|START_ACTION|>",),
    think=("<|START_THINKING|>", "<|END_THINKING|>"),
    answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    cites=Citations(open="<co>", close="</co: "),
    frames=(
        ArrayFrame(open="<|START_ACTION|>", close="<|END_ACTION|>", name="tool_name", arguments=("parameters",)),
        RawFrame(open="<|START_ACTION|>", close="<|END_ACTION|>"),
    ),
    stop=("<|END_OF_TURN_TOKEN|>",),
    raw=freeform.raw("<|START_ACTION|>", "<|END_ACTION|>"),
    lesson=freeform.lesson("<|START_ACTION|>", "<|END_ACTION|>"),
)
GIGACHAT = Dialect(
    name="gigachat3",
    models="GigaChat 3",
    signs=("<|function_call|>",),
    frames=(
        ObjectsFrame(open="<|function_call|>", arguments=("arguments", "parameters")),
        RawFrame(open="<|function_call|>", close=""),
    ),
    stop=("<|message_sep|>", "</s>"),
    raw=freeform.raw("<|function_call|>", ""),
    lesson=freeform.lesson("<|function_call|>", ""),
)
