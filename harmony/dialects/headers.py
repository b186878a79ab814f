"""Dialects that write the tool's name in a header: Solar Open and its successor; harmony over other vocabularies."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.name_header import NamedJsonCall
from antiphon.harmony.calls.raw_text import RawTextCall
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

_SOLAR_CALLS = "<|tool_calls|>"
_SOLAR_CALL = ("<|tool_call:begin|>", "<|tool_call:end|>")

SOLAR = Dialect(
    name="solar-open",
    models="Solar Open",
    template_markers=("<|tool_call:begin|>", "<|tool_call:name|>"),
    think=("<|think|>", "<|end|>"),
    message_opener="<|begin|>assistant",
    answer=("<|content|>", "<|end|>"),
    ignored_markers=("<|calls|>",),
    calls=(
        CallBlock(
            open=_SOLAR_CALLS,
            close="",
            calls=(
                NamedJsonCall(
                    open=_SOLAR_CALL[0],
                    name_mark="<|tool_call:name|>",
                    end="<|tool_call:args|>",
                    close=_SOLAR_CALL[1],
                    separator="",
                ),
                RawTextCall(open=_SOLAR_CALL[0], close=_SOLAR_CALL[1]),
            ),
        ),
    ),
    stop=("<|flush|>", "<|calls|>"),
    freeform=(_SOLAR_CALLS + _SOLAR_CALL[0], _SOLAR_CALL[1]),
)
SOLAR2 = Dialect(
    name="solar-open-2",
    models="Solar Open 2, Solar Pro 4",
    template_markers=("<|tool_call:start|>", "<|tool_arg:start|>"),
    think=("<|think:start|>", "<|think:end|>"),
    message_opener="<|im:start|>assistant<|im:content|>",
    calls=(
        XmlTagCall(
            head="<|tool_call:start|>",
            end="",
            foot="<|tool_call:end|>",
            key="<|tool_arg:start|>",
            key_end="<|tool_arg:value|>",
            value_end="<|tool_arg:end|>",
            gap="",
        ),
    ),
    stop=("<|im:end|>",),
)
_COMMENTARY = "<|channel|>commentary to=functions."
HARMONY = Dialect(
    name="harmony",
    models="llm-jp 4 and others with gpt-oss's format and a vocabulary of their own",
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    message_opener="<|start|>assistant",
    answer=("<|channel|>final<|message|>", "<|end|>"),
    ignored_markers=("<|channel|>commentary<|message|>", "<|end|>", "<|call|>"),
    calls=(
        NamedJsonCall(open=_COMMENTARY, end=" <|constrain|>json<|message|>", separator="<|call|>"),
        NamedJsonCall(open=_COMMENTARY, end="<|message|>", id_mark="<|constrain|>"),
        NamedJsonCall(open="<|start|>assistant to=functions.", end="<|message|>", id_mark="<|channel|>"),
        NamedJsonCall(open="to=functions.", end="<|message|>", id_mark="<|channel|>"),
    ),
    stop=("<|return|>", "<|call|>"),
    freeform=("<|channel|>commentary to=custom<|message|>", ""),
)
