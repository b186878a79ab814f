"""Hermes, Qwen2.5, Qwen3, Granite 4: one JSON object per call in `<tool_call>`, reasoning in `<think>`."""

from antiphon.harmony.calls.json_object import JsonCall
from antiphon.harmony.dialect import Dialect

OPEN, CLOSE = "<tool_call>", "</tool_call>"

HERMES = Dialect(
    name="hermes",
    models="Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM3",
    template_markers=("<tool_call>",),
    model_types=("smollm3",),
    think=("<think>", "</think>"),
    calls=(JsonCall(open=OPEN, close=CLOSE),),
    freeform=(OPEN, CLOSE),
)
