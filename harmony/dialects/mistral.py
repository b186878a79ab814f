"""Mistral: up to tokenizer version 10 an array of calls, from 11 on one marker for each call."""

from antiphon.harmony.calls.json_array import ArrayFrame
from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.name_header import HeadedFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

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
