"""Hermes, Qwen2.5 and Qwen3: one JSON object with name and arguments in `<tool_call>`, reasoning in `<think>`."""

from harmony.dialect import Dialect
from harmony.dialects import freeform
from harmony.frames import JsonFrame, RawFrame

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
