"""Kimi K2: a section of calls, whose headers are ids that the model counts up over the conversation."""

from harmony.dialect import Dialect
from harmony.headed import HeadedFrame
from harmony.section import Section

KIMI = Dialect(
    name="kimi-k2",
    models="Kimi K2, K2-Thinking, K2.5",
    signs=("<|tool_calls_section_begin|>",),
    think=("<think>", "</think>"),
    frames=(
        Section(
            open="<|tool_calls_section_begin|>",
            close="<|tool_calls_section_end|>",
            inside=(
                HeadedFrame(
                    open="<|tool_call_begin|>",
                    before="functions.",
                    end="<|tool_call_argument_begin|>",
                    close="<|tool_call_end|>",
                    numbered=True,
                ),
            ),
        ),
    ),
    stop=("<|im_end|>", "[EOS]"),
)
