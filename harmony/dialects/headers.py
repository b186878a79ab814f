"""Dialects that write the tool's name in a header: Solar Open; the harmony format over other vocabularies."""

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.name_header import NamedJsonCall
from antiphon.harmony.calls.raw_text import RawTextCall
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
