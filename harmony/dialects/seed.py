"""Seed-OSS: Qwen3-Coder's tags inside `<seed:tool_call>`."""

from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

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
