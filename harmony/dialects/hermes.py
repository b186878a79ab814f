"""Hermes, Qwen2.5 and Qwen3: one JSON object with name and arguments in `<tool_call>`, reasoning in `<think>`."""

from antiphon.harmony.calls.json_object import JsonFrame, RawFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

OPEN, CLOSE = "<tool_call>", "</tool_call>"

HERMES = Dialect(
    name="hermes",
    models="Hermes, Qwen2.5, Qwen3, Granite 4",
    signs=("<tool_call>",),
    think=("<think>", "</think>"),
    frames=(JsonFrame(open=OPEN, close=CLOSE), RawFrame(open=OPEN, close=CLOSE)),
    raw=freeform.raw(OPEN, CLOSE),
    lesson=freeform.lesson(OPEN, CLOSE),
)
