"""Llama 3 and 4: bare JSON objects, or calls as Python would write them."""

from antiphon.harmony.calls.json_array import ObjectsFrame
from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.pythonic import PythonFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

STOP = ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end_of_text|>")

LLAMA3 = Dialect(
    name="llama3",
    models="Llama 3.1, 3.2, 3.3; Llama 4 in JSON",
    signs=("<|eot_id|>", '"parameters"'),
    frames=(ObjectsFrame(open="<|python_tag|>"), ObjectsFrame(), RawFrame(open="<|python_tag|>", close="")),
    stop=STOP,
    raw=freeform.raw("<|python_tag|>", ""),
    lesson=freeform.lesson("<|python_tag|>", ""),
)
LLAMA4 = Dialect(
    name="llama4-pythonic",
    models="Llama 4",
    signs=("<|python_start|>",),
    frames=(
        PythonFrame(open="<|python_start|>", close="<|python_end|>"),
        PythonFrame(open="["),
        ObjectsFrame(open="<|python_start|>", close="<|python_end|>"),
        ObjectsFrame(),
        RawFrame(open="<|python_start|>", close="<|python_end|>"),
    ),
    stop=STOP,
    raw=freeform.raw("<|python_start|>", "<|python_end|>"),
    lesson=freeform.lesson("<|python_start|>", "<|python_end|>"),
)
