"""Mistral: up to tokenizer version 10 an array of calls, from 11 on one marker for each call."""

from harmony.arrays import ArrayFrame
from harmony.dialect import Dialect
from harmony.dialects import freeform
from harmony.frames import RawFrame
from harmony.headed import HeadedFrame

OPEN = "[TOOL_CALLS]"
_ARRAY = ArrayFrame(open=OPEN)

MISTRAL = Dialect(
    name="mistral",
    models="Mistral and Mixtral before tokenizer version 11",
    signs=("[TOOL_CALLS]",),
    think=("<think>", "</think>"),
    frames=(_ARRAY, RawFrame(open=OPEN, close="")),
    stop=("</s>",),
    raw=freeform.raw(OPEN, ""),
    lesson=freeform.lesson(OPEN, ""),
)
MISTRAL_V11 = Dialect(
    name="mistral-v11",
    models="Mistral from tokenizer version 11 on, Magistral, Devstral",
    signs=("[TOOL_CALLS]", "[ARGS]"),
    think=("[THINK]", "[/THINK]"),
    also=(("<think>", "</think>"),),
    frames=(HeadedFrame(open=OPEN, end="[ARGS]", id_mark="[CALL_ID]", apart=""), _ARRAY, RawFrame(open=OPEN, close="")),
    stop=("</s>",),
    raw=freeform.raw(OPEN, ""),
    lesson=freeform.lesson(OPEN, ""),
)
