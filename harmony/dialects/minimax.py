"""MiniMax, dots and MiniCPM5: tags with the name in an attribute, typed by the tool's schema; M3's element trees."""

from antiphon.harmony.calls.section import Section
from antiphon.harmony.calls.xml_elements import ElementsFrame
from antiphon.harmony.calls.xml_tags import TaggedFrame
from antiphon.harmony.dialect import Dialect

_INVOKE = TaggedFrame(
    open="",
    close="",
    head="<invoke name=",
    foot="</invoke>",
    key="<parameter name=",
    value_end="</parameter>",
    quote='"',
    gap="",
    outer=("</minimax:tool_call>", "</dots_function_call>"),
)

MINIMAX = Dialect(
    name="minimax-m2",
    models="MiniMax M2",
    signs=("<minimax:tool_call>",),
    think=("<think>", "</think>"),
    frames=(Section(open="<minimax:tool_call>", close="</minimax:tool_call>", inside=(_INVOKE,), between="\n"),),
    stop=("[e~[",),
)
_MARK = "]<]minimax[>["
M3 = Dialect(
    name="minimax-m3",
    models="MiniMax M3",
    signs=(_MARK,),
    think=("<mm:think>", "</mm:think>"),
    frames=(
        Section(
            open=f"{_MARK}<tool_call>",
            close=f"{_MARK}</tool_call>",
            inside=(ElementsFrame(mark=_MARK),),
            between="\n",
        ),
    ),
    stop=("[e~[",),
)
DOTS = Dialect(
    name="dots",
    models="dots",
    signs=("<dots_function_call>",),
    think=("<think>", "</think>"),
    frames=(Section(open="<dots_function_call>", close="</dots_function_call>", inside=(_INVOKE,), between="\n"),),
)
MINICPM = Dialect(
    name="minicpm5",
    models="MiniCPM5",
    signs=("<function name=", "<param name="),
    think=("<think>", "</think>"),
    frames=(
        TaggedFrame(
            open="",
            close="",
            head="<function name=",
            foot="</function>",
            key="<param name=",
            value_end="</param>",
            quote='"',
            gap="",
        ),
    ),
)
