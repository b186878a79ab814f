"""GigaChat: a sequence of JSON objects in 3.0 and 3.1; DeepSeek's tags with a mark of its own in 3.5."""

from antiphon.harmony.calls.json_array import JsonSequenceCall
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects.deepseek import THINK, create_tag_calls

_TURN = "<|message_sep|>"
GIGACHAT30 = Dialect(
    name="gigachat3.0",
    models="GigaChat 3.0",
    template_markers=("function call", "<|role_sep|>"),
    ignored_markers=(_TURN,),
    calls=(
        JsonSequenceCall(
            open="function call<|role_sep|>",
            separator=f"{_TURN}\n\nfunction call<|role_sep|>\n",
            arguments=("arguments", "parameters"),
        ),
    ),
    stop=("</s>",),
    freeform=("function call<|role_sep|>", _TURN),
)
GIGACHAT = Dialect(
    name="gigachat3",
    models="GigaChat 3.1",
    template_markers=("<|function_call|>",),
    calls=(JsonSequenceCall(open="<|function_call|>", arguments=("arguments", "parameters")),),
    stop=("<|message_sep|>", "</s>"),
    freeform=("<|function_call|>", ""),
)
_MARK = "｜GCML｜"
GIGACHAT35 = Dialect(
    name="gigachat3.5",
    models="GigaChat 3.5",
    template_markers=(_MARK,),
    think=THINK,
    calls=(create_tag_calls(_MARK, "tool_calls"),),
    stop=(_TURN, "</s>"),
)
