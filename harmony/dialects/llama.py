"""Llama 3 and 4: bare JSON objects, or calls in Python syntax."""

from antiphon.harmony.calls.json_array import JsonSequenceCall
from antiphon.harmony.calls.pythonic import PythonicCall
from antiphon.harmony.dialect import Dialect

STOP = ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end_of_text|>")

LLAMA3 = Dialect(
    name="llama3",
    models="Llama 3.1, 3.2, 3.3; Llama 4 in JSON",
    template_markers=("<|eot_id|>", '"parameters"'),
    calls=(
        JsonSequenceCall(open="<|python_tag|>"),
        JsonSequenceCall(),
    ),
    stop=STOP,
    freeform=("<|python_tag|>", ""),
)
LLAMA4 = Dialect(
    name="llama4-pythonic",
    models="Llama 4",
    template_markers=("<|python_start|>",),
    calls=(
        PythonicCall(open="<|python_start|>", close="<|python_end|>"),
        PythonicCall(open="["),
        JsonSequenceCall(open="<|python_start|>", close="<|python_end|>"),
        JsonSequenceCall(open="<|python_start|><|python_end|>"),  # as its template writes earlier calls
        JsonSequenceCall(),
    ),
    stop=STOP,
    freeform=("<|python_start|>", "<|python_end|>"),
)
