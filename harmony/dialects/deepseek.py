"""DeepSeek: V3 and R1 with fenced JSON, V3.1 with bare JSON, V3.2 and V4 with tags that have a type attribute."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.name_header import NamedJsonCall
from antiphon.harmony.calls.raw_text import RawTextCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
SEPARATOR = "<｜tool▁sep｜>"
STOP = ("<｜end▁of▁sentence｜>",)
THINK = ("<think>", "</think>")

_FENCED = NamedJsonCall(
    open=CALL[0],
    before=f"function{SEPARATOR}",
    end="\n",
    fence="```json\n",
    fence_end="\n```",
    close=CALL[1],
)
_RAW = RawTextCall(open=CALL[0], close=CALL[1])
_BARE = NamedJsonCall(open=CALL[0], end=SEPARATOR, close=CALL[1], separator="")

V3 = Dialect(
    name="deepseek-v3",
    models="DeepSeek V3, R1",
    template_markers=("<｜tool▁calls▁begin｜>", "```json"),
    think=THINK,
    calls=(CallBlock(open=CALLS[0], close=CALLS[1], calls=(_FENCED, _BARE, _RAW)),),
    stop=STOP,
    freeform=(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)
V31 = Dialect(
    name="deepseek-v3.1",
    models="DeepSeek V3.1",
    template_markers=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    think=THINK,
    calls=(CallBlock(open=CALLS[0], close=CALLS[1], calls=(_BARE, _FENCED, _RAW)),),
    stop=STOP,
    freeform=(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)

_MARK = "｜DSML｜"
_SPELLINGS = tuple(
    (f"<{_MARK}{name}>", f"</{_MARK}{name}>")
    for name in ("function_calls", "tool_calls", "toolcalls", "calls", " calls", "tool")
)
_INVOKE = XmlTagCall(
    head=f"<{_MARK}invoke name=",
    foot=f"</{_MARK}invoke>",
    key=f"<{_MARK}parameter name=",
    value_end=f"</{_MARK}parameter>",
    quote='"',
    type_attribute="string",
    gap="",
    outer_closers=tuple(closer for _, closer in _SPELLINGS),
)

V32 = Dialect(
    name="deepseek-v3.2",
    models="DeepSeek V3.2",
    template_markers=(_MARK, "function_calls"),
    think=THINK,
    calls=(CallBlock(open=_SPELLINGS[0][0], close=_SPELLINGS[0][1], aliases=_SPELLINGS[1:], calls=(_INVOKE,)),),
    stop=STOP,
)
V4 = Dialect(
    name="deepseek-v4",
    models="DeepSeek V4",
    template_markers=(_MARK,),
    think=THINK,
    calls=(
        CallBlock(
            open=_SPELLINGS[1][0],
            close=_SPELLINGS[1][1],
            aliases=(_SPELLINGS[0], *_SPELLINGS[2:]),
            calls=(_INVOKE,),
        ),
    ),
    stop=STOP,
)
