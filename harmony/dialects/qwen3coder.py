"""Qwen3-Coder, Qwen3.5 and relatives: calls as XML-like tags, whose values are typed by the tool's schema.

A custom tool is a function with the one parameter `input`: values are raw text in this dialect anyway. Some
checkpoints fall back to the JSON that their ancestors wrote, so that is read too.
"""

from antiphon.harmony.calls.json_object import JsonFrame
from antiphon.harmony.calls.xml_tags import TaggedFrame
from antiphon.harmony.dialect import Dialect

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
