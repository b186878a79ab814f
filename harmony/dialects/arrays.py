"""Families that write all calls of a turn as one JSON array."""

from harmony.arrays import ArrayFrame, ObjectsFrame
from harmony.dialect import Dialect

THINK = ("<think>", "</think>")

GRANITE3 = Dialect(
    name="granite3",
    models="Granite 3",
    signs=("<|tool_call|>",),
    think=("Here is my thought process:", "Here is my response:"),
    frames=(ArrayFrame(open="<|tool_call|>"), ArrayFrame(open="<tool_call>")),
    stop=("<|end_of_text|>",),
)
PHI4 = Dialect(
    name="phi4-mini",
    models="Phi-4-mini",
    signs=("functools",),
    think=THINK,
    frames=(ArrayFrame(open="functools"),),
    stop=("<|end|>", "<|endoftext|>"),
)
XLAM = Dialect(
    name="xlam",
    models="xLAM",
    think=THINK,
    frames=(ArrayFrame(open="["), ArrayFrame(open="[TOOL_CALLS]"), ArrayFrame(open="```json", close="```")),
)
JAMBA = Dialect(
    name="jamba",
    models="Jamba",
    signs=("<tool_calls>",),
    think=THINK,
    frames=(ArrayFrame(open="<tool_calls>", close="</tool_calls>"),),
)
HUNYUAN = Dialect(
    name="hunyuan",
    models="Hunyuan A13B",
    signs=("<tool_calls>", "<answer>"),
    think=THINK,
    answer=("<answer>", "</answer>"),
    frames=(ArrayFrame(open="<tool_calls>", close="</tool_calls>"),),
    stop=("<|eos|>",),
)
APERTUS = Dialect(
    name="apertus",
    models="Apertus",
    signs=("<|tools_prefix|>",),
    think=("<|inner_prefix|>", "<|inner_suffix|>"),
    frames=(ArrayFrame(open="<|tools_prefix|>", close="<|tools_suffix|>", keyed=True),),
    stop=("<|assistant_end|>",),
)
COHERE = Dialect(
    name="cohere",
    models="Command A, Command R7B",
    signs=("<|START_ACTION|>",),
    think=("<|START_THINKING|>", "<|END_THINKING|>"),
    answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    frames=(ArrayFrame(open="<|START_ACTION|>", close="<|END_ACTION|>", name="tool_name", arguments=("parameters",)),),
    stop=("<|END_OF_TURN_TOKEN|>",),
)
GIGACHAT = Dialect(
    name="gigachat3",
    models="GigaChat 3",
    signs=("<|function_call|>",),
    frames=(ObjectsFrame(open="<|function_call|>", arguments=("arguments", "parameters")),),
    stop=("<|message_sep|>", "</s>"),
)
