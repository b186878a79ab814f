"""Dialects that write all calls of a turn as one JSON array."""

from antiphon.harmony.calls.citations import CitationFormat
from antiphon.harmony.calls.json_array import JsonArrayCall
from antiphon.harmony.dialect import Dialect

THINK = ("<think>", "</think>")

GRANITE3 = Dialect(
    name="granite3",
    models="Granite 3",
    template_markers=("<|tool_call|>",),
    think=("Here is my thought process:", "Here is my response:"),
    calls=(
        JsonArrayCall(open="<|tool_call|>"),
        JsonArrayCall(open="<tool_call>"),
    ),
    stop=("<|end_of_text|>",),
    freeform=("<|tool_call|>", ""),
)
PHI4 = Dialect(
    name="phi4-mini",
    models="Phi-4-mini",
    template_markers=("functools",),
    other_template_markers=(("<|/tool|>",),),
    think=THINK,
    calls=(
        JsonArrayCall(open="<|tool_call|>", close="<|/tool_call|>"),
        JsonArrayCall(open="functools"),
    ),
    stop=("<|end|>", "<|endoftext|>"),
    freeform=("<|tool_call|>", "<|/tool_call|>"),
)
NEMOTRON2 = Dialect(
    name="nemotron-nano-v2",
    models="Nemotron Nano v2, Llama-Nemotron",
    template_markers=("<TOOLCALL>",),
    think=THINK,
    calls=(JsonArrayCall(open="<TOOLCALL>", close="</TOOLCALL>"),),
    stop=("<SPECIAL_12>", "<|eot_id|>", "<|im_end|>"),
    freeform=("<TOOLCALL>", "</TOOLCALL>"),
)
XLAM = Dialect(
    name="xlam",
    models="xLAM",
    think=THINK,
    calls=(
        JsonArrayCall(open="["),
        JsonArrayCall(open="[TOOL_CALLS]"),
        JsonArrayCall(open="```json", close="```"),
    ),
    freeform=("[TOOL_CALLS]", ""),
)
JAMBA = Dialect(
    name="jamba",
    models="Jamba",
    template_markers=("<tool_calls>",),
    think=THINK,
    calls=(JsonArrayCall(open="<tool_calls>", close="</tool_calls>"),),
    freeform=("<tool_calls>", "</tool_calls>"),
)
APRIEL = Dialect(
    name="apriel",
    models="Apriel 1.5, 1.6",
    template_markers=("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
    think=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ignored_markers=("[END FINAL RESPONSE]",),
    calls=(JsonArrayCall(open="<tool_calls>", close="</tool_calls>"),),
    stop=("<|end|>",),
    freeform=("<tool_calls>", "</tool_calls>"),
)
MINIMAX1 = Dialect(
    name="minimax-m1",
    models="MiniMax M1",
    template_markers=("<tool_calls>", "<beginning_of_sentence>"),
    think=THINK,
    calls=(JsonArrayCall(open="<tool_calls>", close="</tool_calls>", brackets=False, separator="\n"),),
    stop=("<end_of_sentence>",),
    freeform=("<tool_calls>", "</tool_calls>"),
)
HUNYUAN = Dialect(
    name="hunyuan",
    models="Hunyuan A13B",
    template_markers=("<tool_calls>", "<answer>"),
    think=THINK,
    answer=("<answer>", "</answer>"),
    calls=(JsonArrayCall(open="<tool_calls>", close="</tool_calls>"),),
    stop=("<|eos|>",),
    freeform=("<tool_calls>", "</tool_calls>"),
)
APERTUS = Dialect(
    name="apertus",
    models="Apertus",
    template_markers=("<|tools_prefix|>",),
    think=("<|inner_prefix|>", "<|inner_suffix|>"),
    calls=(JsonArrayCall(open="<|tools_prefix|>", close="<|tools_suffix|>", keyed=True),),
    stop=("<|assistant_end|>",),
    freeform=("<|tools_prefix|>", "<|tools_suffix|>"),
)
COHERE = Dialect(
    name="cohere",
    models="Command A, Command R7B",
    template_markers=("<|START_ACTION|>",),
    think=("<|START_THINKING|>", "<|END_THINKING|>"),
    answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    citations=CitationFormat(open="<co>", close="</co: "),
    calls=(
        JsonArrayCall(open="<|START_ACTION|>", close="<|END_ACTION|>", name="tool_name", arguments=("parameters",)),
    ),
    stop=("<|END_OF_TURN_TOKEN|>",),
    freeform=("<|START_ACTION|>", "<|END_ACTION|>"),
)
