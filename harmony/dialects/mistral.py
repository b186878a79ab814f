"""Mistral: an array of calls up to tokenizer version 10, one marker per call from version 11 on."""

from antiphon.harmony.calls.json_array import JsonArrayCall
from antiphon.harmony.calls.name_header import NamedJsonCall
from antiphon.harmony.dialect import Dialect

OPEN = "[TOOL_CALLS]"
_ARRAY = JsonArrayCall(open=OPEN)

MISTRAL = Dialect(
    name="mistral",
    models="Mistral and Mixtral before tokenizer version 11",
    template_markers=("[TOOL_CALLS]",),
    think=("<think>", "</think>"),
    calls=(_ARRAY,),
    stop=("</s>",),
    freeform=(OPEN, ""),
)
MISTRAL_V11 = Dialect(
    name="mistral-v11",
    models="Mistral from tokenizer version 11 on, Magistral, Devstral",
    template_markers=("[TOOL_CALLS]", "[ARGS]"),
    think=("[THINK]", "[/THINK]"),
    think_aliases=(("<think>", "</think>"),),
    calls=(
        NamedJsonCall(open=OPEN, end="[ARGS]", id_mark="[CALL_ID]", separator=""),
        _ARRAY,
    ),
    stop=("</s>",),
    freeform=(OPEN, ""),
)
