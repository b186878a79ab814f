"""GLM 4.5 to 5 and relatives: the name directly after the opening tag, then keys and values in separate tags."""

from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

GLM = Dialect(
    name="glm",
    models="GLM 4.5, 4.6, 4.7, 5",
    template_markers=("<arg_key>", "<tool_call>"),
    think=("<think>", "</think>"),
    calls=(
        XmlTagCall(
            open="",
            close="",
            head="<tool_call>",
            end="",
            foot="</tool_call>",
            key="<arg_key>",
            key_end="</arg_key>",
            value="<arg_value>",
            value_end="</arg_value>",
        ),
    ),
    stop=("<|user|>", "<|observation|>", "<|endoftext|>"),
)
