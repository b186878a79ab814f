"""Prints `docs/fields.md`: `python -m antiphon.app.requests.fields > docs/fields.md`."""

import sys

from antiphon.app.requests.fields import CHAT_FIELDS, RESPONSES_FIELDS
from antiphon.events.inputs import HOSTED_ITEM_TYPES, HOSTED_TOOL_TYPES

_HEAD = """# Every field of a request, and what becomes of it

This page is printed by `python -m antiphon.app.requests.fields` from the list that decodes requests; a test compares
the two.

- **honoured**: it changes what is generated, or how it is told.
- **echoed**: it comes back in the reply, nothing more.
- **accepted**: a hint that cannot change the reply here.
- **refused**: 400 `unsupported_parameter`, whatever it holds; where only some values are, the text says so.

An unknown key answers 400 `unknown_parameter`, a value of the wrong type 400 `invalid_type` with its path in `param`.
Null means the same as leaving a field out. Of a key that occurs twice in an object the last one counts. Unknown keys
*inside* input items, messages and tools are ignored, since SDKs send their own objects back with all they hold.
"""

_TAIL = """
## Tools

| type | what becomes of it |
|---|---|
| `function` | offered to the model; with `strict: true` its arguments are held to `parameters` while sampling |
| `custom` | offered as a tool that takes raw text, which is held to the grammar in its `format` |
| `namespace` | its functions and custom tools are offered; a call of one carries `namespace` |
| {hosted} | accepted, echoed, and not offered: they run elsewhere |

Any other type answers 400 `invalid_value`.

## Input items

| type | what becomes of it |
|---|---|
| `message`, also without `type` | shown; images and files as named placeholders; `input_audio` is refused |
| `reasoning` | shown where the model's template has a place for it |
| `function_call`, `custom_tool_call` | shown; each needs its output |
| `function_call_output`, `custom_tool_call_output` | shown; each needs its call before it |
| `item_reference` | replaced by the item of that id; 404 when there is none |
| `additional_tools` | its tools join `tools` |
| `compaction`, `compaction_summary` | the summary sealed in it is shown; a seal that is not ours answers 400 |
| `compaction_trigger` | as the last item: the reply is one `compaction` that sums up all before it |
| {items} | accepted, and not shown: they belong to tools that run elsewhere |

Any other type answers 400 `invalid_value`.
"""


def render_page() -> str:
    """`docs/fields.md`."""
    rows = [_HEAD]
    for title, table in (("POST /v1/responses", RESPONSES_FIELDS), ("POST /v1/chat/completions", CHAT_FIELDS)):
        rows.append(f"\n## {title}\n\n| field | is | what that means |\n|---|---|---|\n")
        rows += [
            f"| `{field.name}` | {field.handling} | {field.description} |\n"
            for field in sorted(table, key=lambda f: f.name)
        ]
    ticked = [", ".join(f"`{name}`" for name in sorted(names)) for names in (HOSTED_TOOL_TYPES, HOSTED_ITEM_TYPES)]
    return "".join(rows) + _TAIL.replace("{hosted}", ticked[0]).replace("{items}", ticked[1])


if __name__ == "__main__":
    sys.stdout.write(render_page())
