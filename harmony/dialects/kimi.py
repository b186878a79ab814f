"""Kimi: K2's section of calls, with headers that are ids counted up over the conversation; K3's channels."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.name_header import NamedJsonCall
from antiphon.harmony.calls.raw_text import RawTextCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

CALLS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")

KIMI = Dialect(
    name="kimi-k2",
    models="Kimi K2, K2-Thinking, K2.5",
    template_markers=("<|tool_calls_section_begin|>",),
    think=("<think>", "</think>"),
    calls=(
        CallBlock(
            open=CALLS[0],
            close=CALLS[1],
            calls=(
                NamedJsonCall(
                    open=CALL[0],
                    before="functions.",
                    end="<|tool_call_argument_begin|>",
                    close=CALL[1],
                    native_ids=True,
                    separator="",
                ),
                RawTextCall(open=CALL[0], close=CALL[1]),
            ),
        ),
    ),
    stop=("<|im_end|>", "[EOS]"),
    freeform=(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)


def _channel(name: str) -> tuple[str, str]:
    """Returns the opening and closing markers of one of K3's channels."""
    return f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>"


K3 = Dialect(
    name="kimi-k3",
    models="Kimi K3",
    template_markers=("<|open|>", "<|sep|>"),
    think=_channel("think"),
    answer=_channel("response"),
    ignored_markers=(_channel("message")[1],),
    calls=(
        CallBlock(
            open=_channel("tools")[0],
            close=_channel("tools")[1],
            calls=(
                XmlTagCall(
                    separator="",
                    head="<|open|>call tool=",
                    end="<|sep|>",
                    foot=_channel("call")[1],
                    key="<|open|>argument key=",
                    key_end="<|sep|>",
                    value_end=_channel("argument")[1],
                    quote='"',
                    type_attribute="type",
                    count_attribute="index",
                    escapes_quotes=True,
                    json_body=('<|open|>json type="object"<|sep|>', _channel("json")[1]),
                    gap="",
                    outer_closers=(_channel("tools")[1],),
                ),
            ),
        ),
    ),
    stop=("<|end_of_msg|>",),
)
