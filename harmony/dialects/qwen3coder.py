"""Qwen3-Coder, Qwen3.5 and relatives: calls as XML-like tags, whose values are typed by the tool's schema.

A custom tool is a function with the one parameter `input`: values are raw text in this dialect anyway. Some
checkpoints fall back to the JSON that their ancestors wrote, so that is read too.
"""

from harmony.dialect import Dialect
from harmony.frames import JsonFrame
from harmony.tagged import TaggedFrame

OPEN, CLOSE = "<tool_call>", "</tool_call>"

QWEN3CODER = Dialect(
    name="qwen3-coder",
    models="Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo, Step 3.5, Granite thinking",
    signs=("<function=", "<tool_call>"),
    think=("<think>", "</think>"),
    frames=(
        TaggedFrame(
            open=OPEN,
            close=CLOSE,
            head="<function=",
            foot="</function>",
            key="<parameter=",
            value_end="</parameter>",
        ),
        JsonFrame(open=OPEN, close=CLOSE),
    ),
)
