"""DeepSeek: V3 and R1 with fenced JSON, V3.1 with bare JSON, V3.2 and V4 with tags that have a type attribute.

V4.1 has a blank in each tag, after the mark.
"""

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

_SECTIONS = ("function_calls", "tool_calls", "toolcalls", "calls", "tool")


def create_tag_calls(mark: str, section: str, *, gap: str = "") -> CallBlock:
    """Returns the calls of V3.2 and its successors: tags that begin with `mark`, in a section of the given name.

    `gap` follows the mark in every tag that is written; both spellings are read.
    """
    gaps = (gap, *({"", " "} - {gap}))
    spellings = tuple(
        (f"<{mark}{blank}{name}>", f"</{mark}{blank}{name}>")
        for blank in gaps
        for name in (section, *(name for name in _SECTIONS if name != section))
    )
    invokes = tuple(
        XmlTagCall(
            head=f"<{mark}{blank}invoke name=",
            foot=f"</{mark}{blank}invoke>",
            key=f"<{mark}{blank}parameter name=",
            value_end=f"</{mark}{blank}parameter>",
            quote='"',
            type_attribute="string",
            gap="",
            outer_closers=tuple(closer for _, closer in spellings),
        )
        for blank in gaps
    )
    return CallBlock(open=spellings[0][0], close=spellings[0][1], aliases=spellings[1:], calls=invokes)


_MARK = "｜DSML｜"

V32 = Dialect(
    name="deepseek-v3.2",
    models="DeepSeek V3.2",
    template_markers=(_MARK, "function_calls"),
    think=THINK,
    calls=(create_tag_calls(_MARK, "function_calls"),),
    stop=STOP,
)
V4 = Dialect(
    name="deepseek-v4",
    models="DeepSeek V4",
    template_markers=(_MARK,),
    think=THINK,
    calls=(create_tag_calls(_MARK, "tool_calls"),),
    stop=STOP,
)
V41 = Dialect(
    name="deepseek-v4.1",
    models="DeepSeek V4.1",
    template_markers=(f"{_MARK} invoke",),
    other_template_markers=((_MARK, "' invoke name="), (_MARK, '" invoke name=')),
    think=THINK,
    calls=(create_tag_calls(_MARK, "calls", gap=" "),),
    stop=STOP,
)
