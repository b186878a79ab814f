"""Mistral: up to tokenizer version 10 an array of calls, from 11 on one marker for each call."""

from harmony.arrays import ArrayFrame
from harmony.dialect import Dialect
from harmony.headed import HeadedFrame

_ARRAY = ArrayFrame(open="[TOOL_CALLS]")

MISTRAL = Dialect(
    name="mistral",
    models="Mistral and Mixtral before tokenizer version 11",
    signs=("[TOOL_CALLS]",),
    think=("<think>", "</think>"),
    frames=(_ARRAY,),
    stop=("</s>",),
)
MISTRAL_V11 = Dialect(
    name="mistral-v11",
    models="Mistral from tokenizer version 11 on, Magistral, Devstral",
    signs=("[TOOL_CALLS]", "[ARGS]"),
    think=("[THINK]", "[/THINK]"),
    frames=(HeadedFrame(open="[TOOL_CALLS]", end="[ARGS]", id_mark="[CALL_ID]"), _ARRAY),
    stop=("</s>",),
)
