"""Kimi: K2's section of calls, whose headers are ids that the model counts up over the conversation; K3's channels."""

from antiphon.harmony.calls.json_object import RawFrame
from antiphon.harmony.calls.name_header import HeadedFrame
from antiphon.harmony.calls.section import Section
from antiphon.harmony.calls.xml_tags import TaggedFrame
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import freeform

CALLS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")

KIMI = Dialect(
    name="kimi-k2",
    models="Kimi K2, K2-Thinking, K2.5",
    signs=("<|tool_calls_section_begin|>",),
    think=("<think>", "</think>"),
    frames=(
        Section(
            open=CALLS[0],
            close=CALLS[1],
            inside=(
                HeadedFrame(
                    open=CALL[0],
                    before="functions.",
                    end="<|tool_call_argument_begin|>",
                    close=CALL[1],
                    numbered=True,
                    apart="",
                ),
                RawFrame(open=CALL[0], close=CALL[1]),
            ),
        ),
    ),
    stop=("<|im_end|>", "[EOS]"),
    raw=freeform.raw(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
    lesson=freeform.lesson(CALLS[0] + CALL[0], CALL[1] + CALLS[1]),
)


def _channel(name: str) -> tuple[str, str]:
    """What opens and what closes one of K3's channels."""
    return f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>"


K3 = Dialect(
    name="kimi-k3",
    models="Kimi K3",
    signs=("<|open|>", "<|sep|>"),
    think=_channel("think"),
    answer=_channel("response"),
    dropped=(_channel("message")[1],),
    frames=(
        Section(
            open=_channel("tools")[0],
            close=_channel("tools")[1],
            inside=(
                TaggedFrame(
                    open="",
                    apart="",
                    head="<|open|>call tool=",
                    end="<|sep|>",
                    foot=_channel("call")[1],
                    key="<|open|>argument key=",
                    key_end="<|sep|>",
                    value_end=_channel("argument")[1],
                    quote='"',
                    typed="type",
                    counted="index",
                    gap="",
                    outer=(_channel("tools")[1],),
                ),
            ),
        ),
    ),
    stop=("<|end_of_msg|>",),
)
