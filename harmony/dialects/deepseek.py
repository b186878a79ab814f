"""DeepSeek: V3 and R1 with fenced JSON, V3.1 with bare JSON, V3.2 and V4 with tags whose attribute tells the type."""

from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.name_header import HeadedFrame
from antiphon.harmony.calls.section import Section
from antiphon.harmony.calls.xml_tags import TaggedFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
SEPARATOR = "<｜tool▁sep｜>"
STOP = ("<｜end▁of▁sentence｜>",)
THINK = ("<think>", "</think>")

_FENCED = HeadedFrame(
    open=CALL[0],
    before=f"function{SEPARATOR}",
    end="\n",
    fence="```json\n",
    fence_end="\n```",
    close=CALL[1],
)
_RAW = RawFrame(open=CALL[0], close=CALL[1])
_BARE = HeadedFrame(open=CALL[0], end=SEPARATOR, close=CALL[1], apart="")

V3 = Dialect(
    name="deepseek-v3",
    models="DeepSeek V3, R1",
    signs=("<｜tool▁calls▁begin｜>", "```json"),
    think=THINK,
    frames=(Section(open=CALLS[0], close=CALLS[1], inside=(_FENCED, _BARE, _RAW)),),
    stop=STOP,
    raw=freeform.raw(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
    lesson=freeform.lesson(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)
V31 = Dialect(
    name="deepseek-v3.1",
    models="DeepSeek V3.1",
    signs=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    think=THINK,
    frames=(Section(open=CALLS[0], close=CALLS[1], inside=(_BARE, _FENCED, _RAW)),),
    stop=STOP,
    raw=freeform.raw(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
    lesson=freeform.lesson(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)

_MARK = "｜DSML｜"
_SPELLINGS = tuple(
    (f"<{_MARK}{name}>", f"</{_MARK}{name}>")
    for name in ("function_calls", "tool_calls", "toolcalls", "calls", " calls", "tool")
)
_INVOKE = TaggedFrame(
    open="",
    close="",
    head=f"<{_MARK}invoke name=",
    foot=f"</{_MARK}invoke>",
    key=f"<{_MARK}parameter name=",
    value_end=f"</{_MARK}parameter>",
    quote='"',
    typed="string",
    gap="",
    outer=tuple(closer for _, closer in _SPELLINGS),
)

V32 = Dialect(
    name="deepseek-v3.2",
    models="DeepSeek V3.2",
    signs=(_MARK, "function_calls"),
    think=THINK,
    frames=(Section(open=_SPELLINGS[0][0], close=_SPELLINGS[0][1], also=_SPELLINGS[1:], inside=(_INVOKE,)),),
    stop=STOP,
)
V4 = Dialect(
    name="deepseek-v4",
    models="DeepSeek V4",
    signs=(_MARK,),
    think=THINK,
    frames=(
        Section(
            open=_SPELLINGS[1][0],
            close=_SPELLINGS[1][1],
            also=(_SPELLINGS[0], *_SPELLINGS[2:]),
            inside=(_INVOKE,),
        ),
    ),
    stop=STOP,
)
