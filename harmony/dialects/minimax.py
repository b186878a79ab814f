"""MiniMax, dots and MiniCPM5: tags with the name in an attribute, typed by the tool's schema; M3: element trees."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.xml_elements import XmlElementCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

_INVOKE = XmlTagCall(
    head="<invoke name=",
    foot="</invoke>",
    key="<parameter name=",
    value_end="</parameter>",
    quote='"',
    gap="",
    outer_closers=("</minimax:tool_call>", "</dots_function_call>"),
)

MINIMAX = Dialect(
    name="minimax-m2",
    models="MiniMax M2",
    template_markers=("<minimax:tool_call>",),
    think=("<think>", "</think>"),
    calls=(CallBlock(open="<minimax:tool_call>", close="</minimax:tool_call>", calls=(_INVOKE,), padding="\n"),),
    stop=("[e~[",),
)
_MARK = "]<]minimax[>["
M3 = Dialect(
    name="minimax-m3",
    models="MiniMax M3",
    template_markers=(_MARK,),
    think=("<mm:think>", "</mm:think>"),
    calls=(
        CallBlock(
            open=f"{_MARK}<tool_call>",
            close=f"{_MARK}</tool_call>",
            calls=(XmlElementCall(tag_prefix=_MARK),),
            padding="\n",
        ),
    ),
    stop=("[e~[",),
)
DOTS = Dialect(
    name="dots",
    models="dots",
    template_markers=("<dots_function_call>",),
    think=("<think>", "</think>"),
    calls=(CallBlock(open="<dots_function_call>", close="</dots_function_call>", calls=(_INVOKE,), padding="\n"),),
)
MINICPM = Dialect(
    name="minicpm5",
    models="MiniCPM5",
    template_markers=("<function name=", "<param name="),
    think=("<think>", "</think>"),
    calls=(
        XmlTagCall(
            head="<function name=",
            foot="</function>",
            key="<param name=",
            value_end="</param>",
            quote='"',
            gap="",
            cdata=True,
        ),
    ),
)
