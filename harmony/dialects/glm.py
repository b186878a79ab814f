"""GLM 4.5 to 5 and relatives: the name directly after the opening tag, then keys and values in separate tags.

Hy3 has such calls in a section, and a suffix in each of its tags. Hy4 leaves out the tag after the name.
"""

from msgspec.structs import replace

from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect

GLM = Dialect(
    name="glm",
    models="GLM 4.5, 4.6, 4.7, 5",
    template_markers=("<arg_key>", "<tool_call>"),
    think=("<think>", "</think>"),
    calls=(
        XmlTagCall(
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


def _hy3(name: str, models: str, suffix: str, *template_markers: tuple[str, ...]) -> Dialect:
    """Returns the dialect of Hy3 for one suffix of the tags' names."""
    opener, closer = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    call = XmlTagCall(
        head=f"<tool_call{suffix}>",
        end=f"<tool_sep{suffix}>",
        foot=f"</tool_call{suffix}>",
        key=f"<arg_key{suffix}>",
        key_end=f"</arg_key{suffix}>",
        value=f"<arg_value{suffix}>",
        value_end=f"</arg_value{suffix}>",
        outer_closers=(closer,),
    )
    return Dialect(
        name=name,
        models=models,
        template_markers=template_markers[0],
        other_template_markers=template_markers[1:],
        think=(f"<think{suffix}>", f"</think{suffix}>"),
        calls=(CallBlock(open=opener, close=closer, calls=(call, replace(call, end="")), padding="\n"),),
        stop=(f"<｜hy_eos{suffix}｜>",),
    )


HY3 = _hy3("hy3", "Hy3, Hy4", ":opensource", ("<arg_key:opensource>",), ("<arg_key{}>", ":opensource"))
HY3_PREVIEW = _hy3("hy3-preview", "Hy3 preview", "", ("<tool_sep>", "<arg_key>"), ("<tool_sep{}>",))
