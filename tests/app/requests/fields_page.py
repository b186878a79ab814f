"""Prints `docs/reference/fields.md`: `python -m tests.app.requests.fields_page > docs/reference/fields.md`."""

import sys

from antiphon.app.openapi.schemas import describe_fields
from antiphon.app.requests.fields import RequestBody, list_fields
from antiphon.events.inputs import HOSTED_ITEM_TYPES
from antiphon.events.tools import HOSTED_TOOL_TYPES
from tests.endpoint_bodies import BODIES

RENDERED_HOSTED_TYPES = {"computer_call", "computer_call_output"}

_HEAD = """# Request fields

This page is printed by `python -m tests.app.requests.fields_page` from the structs that decode requests. A test checks
that the page is up to date.

- **honoured**: changes what is generated or how it is returned.
- **echoed**: returned in the reply, with no other effect.
- **accepted**: a hint that cannot change the reply here.
- **refused**: 400 `unsupported_parameter` for any value. If only some values are refused, the description says so.

An unknown key returns 400 `unknown_parameter`. A value of the wrong type returns 400 `invalid_type` with its path in
`param`. Null means the same as leaving a field out. If a key occurs twice in an object, the last value counts. Unknown
keys *inside* input items, messages and tools are ignored, because SDKs send objects back with every key they received.
"""

_TAIL = """
## Tools

| type | handling |
|---|---|
| `function` | offered to the model; with `strict: true` its `parameters` are enforced during sampling |
| `custom` | offered as a tool that takes raw text; a grammar in its `format` is enforced during sampling |
| `namespace` | its functions and custom tools are offered; a call and a `tool_choice` name one with `namespace` |
| `shell` | offered as a function; its calls are `shell_call` items, which the client runs. Other environments than `local` return 400 |
| `apply_patch` | offered as a tool that takes raw text; each file of a patch is an `apply_patch_call` item |
| `local_shell` | offered as a function; its calls are `local_shell_call` items, which the client runs |
| `tool_search` | offered as a function if tools have `defer_loading`, or if the client runs it (`execution: "client"`); these tools are then shown and callable once a `tool_search_output` has them. One at most |
| `computer`, `computer-preview`, `computer_use`, `computer_use_preview` | accepted and echoed, but not offered to the model: it would have to be trained for them. Calls and screenshots in the input are rendered |
| {hosted} | run by this server where its operator has mapped the type, or named or allowed the MCP server ([hosted tools](../hosted-tools.md)); others are accepted and echoed, but not offered to the model |

Names of tools and namespaces have 1 to 128 letters, digits, `_` and `-`, also in Messages; chat completions take 64. The model is offered a
shorter name, with a hash, for one of more than 64 characters, and its calls carry the name that the client sent.

A call of a `function` or `custom` tool with `async: true` has `async: true`, too, and the client may go on without its output. Until then
the model reads "The result will follow."; an output that comes in a later turn is shown at its place, with name and arguments of the call. The
turn ends after the calls, as after others.

Any other type returns 400 `invalid_value`.

## JSON Schemas that are enforced

An object with `properties` has no others, as under vLLM and llama.cpp, and as OpenAI's strict schemas must say: JSON
Schema would allow any, and a weak model adds some until the limit. Properties declared in `allOf`, in the branch of
`anyOf` that is taken, behind `$ref`, or only in `required` count, too. `additionalProperties` (other than false) or
`patternProperties` in a schema allow more; a schema without `properties` allows any. Schemas that describe the same
object in two places at once (one property in two parts of `allOf`), refer to anything but their own parts, or have
thousands of properties are enforced as they are.

## Input items

*Rendered* items become part of the prompt.

| type | handling |
|---|---|
| `message`, also without `type` | rendered; [images and files](../images.md), too; `input_audio` is refused |
| `reasoning` | rendered if the model's template supports it |
| `function_call`, `custom_tool_call`, `shell_call`, `apply_patch_call`, `local_shell_call`, `tool_search_call` with a `call_id` | rendered; each must have an output, except a call with `async: true` (see [tools](#tools)) and a search of the server |
| `function_call_output`, `custom_tool_call_output`, `shell_call_output`, `apply_patch_call_output`, `local_shell_call_output`, `tool_search_output` with a `call_id` | rendered; each must follow its call |
| `item_reference` | replaced by the item with that id; 404 if there is none |
| `additional_tools` | its tools are added to `tools`; after the first message they are shown at this place, so that the prompt before it stays the same |
| `compaction`, `compaction_summary` | its encrypted summary and items are rendered in place of the items before it; 400 if this API key cannot decrypt it |
| `configuration_update` | sets `reasoning.effort`, `text.format` or both for this and later responses, until the next update; not rendered (see below) |
| `compaction_trigger` | must be the last item; the reply is one `compaction` that summarizes everything before it |
| `mcp_call`, `web_search_call`, `code_interpreter_call`, `file_search_call` | rendered as a call and its output, whichever server ran the tool |
| `mcp_approval_request`, `mcp_approval_response` | a call that was not approved or not run is rendered with this as its output; an approved one that the client has just answered is not; each request may have one response |
| `mcp_list_tools` | accepted, but not rendered: the list of tools is |
| `computer_call`, `computer_call_output` | rendered as a call of a tool `computer` and its screenshot; `"image_url": ""` is "[no screenshot]" |
| {items} | accepted, but not rendered: they belong to tools that run elsewhere |

Any other type returns 400 `invalid_value`.

A `configuration_update` in the request's own input comes before the request's own fields, and these before an update of an earlier turn. An update
outlasts a compaction. The Response returns the settings in force. A model that shows the effort at the front of its prompt, as gpt-oss does, reads
the whole prompt again after a change.
"""


def render_page() -> str:
    """Returns the text of `docs/reference/fields.md`."""
    rows, earlier = [_HEAD], dict[str, type[RequestBody]]()
    for title, kind in BODIES.items():
        rows.append(f"\n## {title}\n\n")
        rows += _render_subset(kind, earlier) or _render_table(kind)
        earlier[title] = kind
    type_lists = [
        ", ".join(f"`{name}`" for name in sorted(names))
        for names in (HOSTED_TOOL_TYPES, HOSTED_ITEM_TYPES - RENDERED_HOSTED_TYPES)
    ]
    return "".join(rows) + _TAIL.replace("{hosted}", type_lists[0]).replace("{items}", type_lists[1])


def _render_table(kind: type[RequestBody]) -> list[str]:
    descriptions = describe_fields(kind)
    return [
        "| field | handling | description |\n|---|---|---|\n",
        *(
            f"| `{field.name}` | {field.rule.handling} | {descriptions[field.name]} |\n"
            for field in sorted(list_fields(kind), key=lambda f: f.name)
        ),
    ]


def _render_subset(kind: type[RequestBody], earlier: dict[str, type[RequestBody]]) -> list[str]:
    """Returns a sentence if all fields of this body are those of an earlier one."""
    descriptions = describe_fields(kind)
    for title, other in earlier.items():
        if descriptions.items() <= describe_fields(other).items():
            names = ", ".join(f"`{name}`" for name in sorted(descriptions))
            return [f"The fields of `{title}`{'.' if kind is other else f' named {names}.'}\n"]
    return []


if __name__ == "__main__":
    sys.stdout.write(render_page())
