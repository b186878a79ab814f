"""Kimi K2: a section of calls, whose headers are ids that the model counts up over the conversation."""

from harmony.dialect import Dialect
from harmony.dialects import freeform
from harmony.frames import RawFrame
from harmony.headed import HeadedFrame
from harmony.section import Section

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
