"""Built-in tools as models are offered them: shells and a search of tools as functions, `apply_patch` as raw text.

A patch is text and not JSON, because models were trained to write it so. Its grammar admits what clients can apply.
"""

from typing import Any, Literal

from antiphon.events.tools import BuiltinTool, GrammarFormat, LocalShellTool, PatchTool, ShellTool, ToolSearchTool

BuiltinKind = Literal["shell", "apply_patch", "local_shell", "tool_search"]
MAX_COMMANDS = 32
"""Maximum number of commands in one call."""
SHELL_DESCRIPTION = (
    "Runs commands in a shell on the user's computer, one after the other, and returns what each printed and its exit "
    "code."
)
SKILLS_INTRODUCTION = "Skills are folders with instructions in SKILL.md; read it before use:"
SHELL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {  # the commands come first, so that they are streamed at once
        "commands": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_COMMANDS},
        "timeout_ms": {"type": "integer", "minimum": 1},
        "max_output_length": {"type": "integer", "minimum": 1},
    },
    "required": ["commands"],
    "additionalProperties": False,
}
_COMMANDS: dict[str, Any] = {"anyOf": [SHELL_PARAMETERS["properties"]["commands"], {"type": "string"}]}
SHELL_SCHEMA: dict[str, Any] = {
    **SHELL_PARAMETERS,
    "properties": {**SHELL_PARAMETERS["properties"], "commands": _COMMANDS},
}
"""JSON Schema of a call that is written as JSON. A string is one command. A model that was trained without arrays
writes one, and does not end an array that the grammar made it begin."""
LOCAL_SHELL_DESCRIPTION = "Runs a program on the user's computer and returns what it printed."
LOCAL_SHELL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {
            "type": "array", "items": {"type": "string"}, "minItems": 1, "description": "The program and its arguments."
        },
        "timeout_ms": {"type": "integer", "minimum": 1},
        "working_directory": {"type": "string"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["command"],
    "additionalProperties": False,
}  # fmt: skip
TOOL_SEARCH_DESCRIPTION = "Searches for further tools, which can be called once they are found."
SEARCH_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do."}},
    "required": ["query"],
    "additionalProperties": False,
}
PATCH_DESCRIPTION = """Creates, changes and deletes files. Paths are relative to the workspace.
The text is a patch: a first line, one section for each file, and a last line.
*** Begin Patch
*** Add File: notes/new.md
+Every line of a new file begins with a plus.
*** Update File: src/main.py
@@ def greet():
 a line that stays begins with a blank
-    print("Hi")
+    print("Hello")
*** Delete File: old.txt
*** End Patch
In an update, each change begins with @@ and, if needed, a line of the file above it. Give the lines around the change \
as they are in the file, up to three on each side. Add *** End of File after the last line of the file."""
"""Explanation of the format. It is also the text by which a model without training learns it."""
_PATCH_GRAMMAR = r"""start: "*** Begin Patch\n" {operations} "*** End Patch" "\n"?
op: add | delete | update
add: "*** Add File: " PATH "\n" ("+" TEXT? "\n")+
delete: "*** Delete File: " PATH "\n"
update: "*** Update File: " PATH "\n" hunk+
hunk: "@@" (" " TEXT)? "\n" row+ ("*** End of File\n")?
row: (" " | "-" | "+") TEXT? "\n"
PATH: /[^ \t\n\r\x00]([^\n\r\x00]*[^ \t\n\r\x00])?/{exclusion}
TEXT: /[^\n]+/{exclusion}"""


def builtin_kind(tool: BuiltinTool) -> BuiltinKind:
    """Returns the type of a built-in tool, by which a model calls it."""
    match tool:
        case ShellTool():
            return "shell"
        case PatchTool():
            return "apply_patch"
        case LocalShellTool():
            return "local_shell"
        case ToolSearchTool():
            return "tool_search"


def describe_shell(tool: ShellTool) -> str:
    """Returns the description of a shell, with a line for each of the client's skills."""
    skills = tool.environment.skills if tool.environment else None
    if not skills:
        return SHELL_DESCRIPTION
    lines = (f"- {_one_line(each.name)}: {_one_line(each.description)} ({_one_line(each.path)})" for each in skills)
    return "\n".join((SHELL_DESCRIPTION, SKILLS_INTRODUCTION, *lines))


def patch_grammar(*, single_file: bool, exclusion: str = "") -> str:
    """Returns the grammar of a patch, as Lark text for llguidance.

    `single_file`: it changes one file, because each file is a call of its own. `exclusion`: ends the definition of a
    terminal, and excludes text that would end the call in the model's dialect.
    """
    return _PATCH_GRAMMAR.format(operations="op" if single_file else "op+", exclusion=exclusion)


def builtin_fields(tool: BuiltinTool, *, single_call: bool) -> dict[str, Any]:
    """Returns the fields of a `ToolSpec` that a built-in tool decides."""
    if isinstance(tool, PatchTool):
        return {
            "kind": "custom",
            "builtin": "apply_patch",
            "description": PATCH_DESCRIPTION,
            "format": GrammarFormat(syntax="lark", definition=patch_grammar(single_file=single_call)),
            "single_file": single_call,
        }
    if isinstance(tool, ToolSearchTool):
        return {
            "builtin": "tool_search",
            "description": tool.description or TOOL_SEARCH_DESCRIPTION,
            "parameters": tool.parameters or SEARCH_PARAMETERS,
            "strict": True,
            "execution": tool.execution,
        }
    if isinstance(tool, LocalShellTool):
        return {
            "builtin": "local_shell",
            "description": LOCAL_SHELL_DESCRIPTION,
            "parameters": LOCAL_SHELL_PARAMETERS,
            "strict": True,
        }
    return {
        "builtin": "shell",
        "description": describe_shell(tool),
        "parameters": SHELL_PARAMETERS,
        "strict": True,
        "local_shell": tool.environment is not None,
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())
