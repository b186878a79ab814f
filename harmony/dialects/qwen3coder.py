"""Qwen3-Coder, Qwen3.5 and relatives: calls as XML-like tags. The tool's schema gives the types of the values.

Seed-OSS writes the same tags inside `<seed:tool_call>`.

A custom tool is a function with the single parameter `input`, because values are raw text in this dialect anyway. Some
checkpoints fall back to the JSON calls of their predecessors, so these are parsed too.
"""

from antiphon.harmony.calls.json_object import JsonCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

OPEN, CLOSE = "<tool_call>", "</tool_call>"

QWEN3CODER = Dialect(
    name="qwen3-coder",
    models="Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo, Step 3.5, Granite thinking",
    template_markers=("<function=", "<tool_call>"),
    think=("<think>", "</think>"),
    calls=(
        XmlTagCall(
            open=OPEN,
            close=CLOSE,
            head="<function=",
            foot="</function>",
            key="<parameter=",
            value_end="</parameter>",
        ),
        JsonCall(open=OPEN, close=CLOSE),
    ),
)
SEED = Dialect(
    name="seed-oss",
    models="Seed-OSS",
    template_markers=("<seed:tool_call>",),
    think=("<seed:think>", "</seed:think>"),
    calls=(
        XmlTagCall(
            open="<seed:tool_call>",
            close="</seed:tool_call>",
            head="<function=",
            foot="</function>",
            key="<parameter=",
            value_end="</parameter>",
            gap="",
        ),
    ),
    stop=("<seed:eos>",),
)
