"""Tools and the system text that Claude Code sends, recorded from its print mode (version 2.1.330).

Training and evaluation share them. A parameter is a string unless it is written as `name:type`; only the parameters
that the chat template lists are kept.
"""

from __future__ import annotations

from training import tool_definitions
from training.chat import ChatMessage, ToolDefinition
from training.skills.codex_tools import make_server_tools
from training.word_sampler import WordSampler

CLAUDE_CODE_TOOLS = [
    ("Agent", ["description", "prompt"]),
    ("Bash", ["command"]),
    ("Edit", ["file_path", "old_string", "new_string"]),
    ("ListAgents", ["channel", "q", "cursor"]),
    ("Read", ["file_path"]),
    ("ReportFindings", ["findings"]),
    ("ScheduleWakeup", ["delaySeconds:number", "reason", "prompt", "stop:boolean"]),
    ("Skill", ["skill"]),
    ("ToolSearch", ["query", "max_results:number"]),
    ("Workflow", ["script", "name", "description", "title"]),
    ("DeferredToolPlaceholder", []),
    ("Write", ["file_path", "content"]),
]
"""Name and parameters of the tools, in the order in which they are sent."""
SHELL_TOOL = "Bash"
SYSTEM = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint={};\n\nYou are a Claude agent."
"""The system text's beginning; the template keeps its first 80 characters."""


def make_claude_code_tools(words: WordSampler) -> tuple[list[ToolDefinition], ToolDefinition]:
    """Returns Claude Code's tools, sometimes without a few, in another order or with an MCP server's; and `Bash`."""
    kept = words.random.choice((1.0, 1.0, 0.8))
    entries = [entry for entry in CLAUDE_CODE_TOOLS if entry[0] == SHELL_TOOL or words.flip_coin(kept)]
    tools = [tool_definitions.make_tool(*entry) for entry in entries]
    shell_tool = next(tool for tool in tools if tool_definitions.name_of(tool) == SHELL_TOOL)
    if words.flip_coin(0.2):
        tools += make_server_tools(words)
    if words.flip_coin(0.2):
        words.random.shuffle(tools)
    return tools, shell_tool


def make_claude_code_context(words: WordSampler) -> list[ChatMessage]:
    """Returns the system message. The reminders in the user's messages are left out by the template."""
    build = "".join(words.random.choices("0123456789abcdef", k=3))
    return [{"role": "system", "content": SYSTEM.format(build, words.random.choice(("sdk-cli", "cli")))}]
