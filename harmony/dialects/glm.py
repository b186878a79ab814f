"""GLM 4.5 to 5 and relatives: the name directly after the opening tag, then keys and values in separate tags.

Hy3 has such calls in a section, and a suffix in each of its tags. Hy4 leaves out the tag after the name.
"""

import re
from collections.abc import Iterable

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


HY3_MODELS = "Hy3, Hy4"
HY3_SUFFIX = ":opensource"
"""Suffix of the tags of published checkpoints; others have one of their own."""
_SUFFIXED_TAG = re.compile(r"<arg_key(:[\w-]+)>")
_SUFFIX_TEXT = re.compile(r"""["'](:[\w-]+)["']""")
_FORMATTED_TAG = "<arg_key{}>"
"""Tag in a template that puts the suffix in."""


def find_hy3_suffix(template: str, added_tokens: Iterable[str]) -> str:
    """Returns the suffix of Hy3's tags in a vocabulary or in a chat template; empty if neither has one."""
    texts = (*added_tokens, template)
    if found := next(filter(None, map(_SUFFIXED_TAG.search, texts)), None):
        return found[1]
    found = _SUFFIX_TEXT.search(template) if _FORMATTED_TAG in template else None
    return found[1] if found else ""


def create_hy3(name: str, models: str, suffix: str, *template_markers: tuple[str, ...]) -> Dialect:
    """Returns the dialect of Hy3 for one suffix of the tags' names. `template_markers`: sets that detect it."""
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
        template_markers=template_markers[0] if template_markers else (),
        other_template_markers=template_markers[1:],
        think=(f"<think{suffix}>", f"</think{suffix}>"),
        calls=(CallBlock(open=opener, close=closer, calls=(call, replace(call, end="")), padding="\n"),),
        stop=(f"<｜hy_eos{suffix}｜>",),
    )


HY3 = create_hy3("hy3", HY3_MODELS, HY3_SUFFIX)
HY3_PREVIEW = create_hy3("hy3-preview", "Hy3 preview", "", ("<tool_sep>", "<arg_key>"), ("<tool_sep{}>",))
