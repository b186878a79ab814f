"""Seed-OSS: Qwen3-Coder's tags in a wrapper of its own."""

from harmony.dialect import Dialect
from harmony.tagged import TaggedFrame

SEED = Dialect(
    name="seed-oss",
    models="Seed-OSS",
    signs=("<seed:tool_call>",),
    think=("<seed:think>", "</seed:think>"),
    frames=(
        TaggedFrame(
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
