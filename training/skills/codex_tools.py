"""Tools and texts that the Codex CLI sends, recorded from its terminal interface (version 0.169.0).

Training and evaluation share them. A parameter is a string unless it is written as `name:type`; only the parameters
that the chat template lists are kept.
"""

from __future__ import annotations

from training import phrases, tool_definitions
from training.chat import ChatMessage, ToolDefinition, user_message
from training.fixed_texts import CODEX
from training.word_sampler import WordSampler

TERMINAL_TOOLS = [
    ("write_stdin", ["session_id:number"]),
    ("list_mcp_resources", ["cursor", "server"]),
    ("list_mcp_resource_templates", ["cursor", "server"]),
    ("read_mcp_resource", ["server", "uri"]),
    ("request_user_input", ["questions"]),
    ("view_image", ["path"]),
    ("multi_agent_v1__close_agent", ["target"]),
    ("multi_agent_v1__resume_agent", ["id"]),
    ("multi_agent_v1__send_input", ["target"]),
    ("multi_agent_v1__spawn_agent", ["fork_context:boolean", "items", "message", "model"]),
    ("multi_agent_v1__wait_agent", ["targets"]),
    ("mcp__codex_tui__create_thread", ["prompt"]),
    ("mcp__codex_tui__create_worktree", ["allowAsync:boolean"]),
    ("mcp__codex_tui__fork_thread", ["threadId"]),
    ("mcp__codex_tui__get_worktree_creation_status", ["operationId"]),
    ("mcp__codex_tui__list_archived_threads", ["cursor", "limit:integer"]),
    ("mcp__codex_tui__list_threads", ["limit:integer"]),
    ("mcp__codex_tui__list_worktrees", ["cursor"]),
    ("mcp__codex_tui__read_thread", ["threadId"]),
    ("mcp__codex_tui__send_message_to_thread", ["threadId", "prompt"]),
    ("mcp__codex_tui__set_thread_archived", ["archived:boolean"]),
    ("mcp__codex_tui__set_thread_title", ["title"]),
    ("mcp__codex_tui__wait_threads", ["targets"]),
    ("get_goal", []),
    ("create_goal", ["objective"]),
    ("update_goal", ["status"]),
]
"""The terminal interface's tools without `exec_command`. `exec` sends `fixed_texts.CODEX`."""
INSTRUCTIONS = (
    "You are a coding agent running in the Codex CLI, a terminal-based coding assistant. Codex CLI is an open source "
    "project led by OpenAI."
)
TITLE_REQUEST = (
    "Generate a concise, single-line task title of at most 36 characters and under five words where possible. Start "
    "with an imperative verb. Capitalize only the first word unless the user's language, proper nouns, acronyms, or "
    "code terms require otherwise. Preserve ticket references exactly. Write in the user's language. Do not use "
    "quotes, markdown, or trailing punctuation. Do not answer the request.\n\nUser prompt:\n{}"
)
"""Second request of a session: it has no tools, and its answer must be JSON with a `title`."""
MAX_TITLE_CHARS = 36
PARSE_ERRORS = [
    "failed to parse function arguments: expected `:` at line 1 column {}",
    "failed to parse function arguments: missing field `{}` at line 1 column 2",
    "failed to parse function arguments: EOF while parsing a string at line 1 column {}",
]
"""Outputs of a call whose arguments Codex cannot read."""


def make_exec_command() -> ToolDefinition:
    """Returns Codex's tool for running commands."""
    return tool_definitions.make_tool("exec_command", ["cmd"], ["workdir", "yield_time_ms:number"])


def make_codex_tools(words: WordSampler) -> list[ToolDefinition]:
    """Returns Codex's tools, `exec_command` first: mostly those of the terminal interface, some with MCP servers'."""
    if words.flip_coin(0.25):
        tools = [tool_definitions.make_tool(name, params) for name, params in CODEX[:11]]
    else:
        kept = words.random.choice((1.0, 1.0, 0.8))
        tools = [tool_definitions.make_tool(*entry) for entry in TERMINAL_TOOLS if words.flip_coin(kept)]
    if words.flip_coin(0.35):
        for _ in range(words.random.randint(1, 2)):
            tools += make_server_tools(words)
    if words.flip_coin(0.2):
        words.random.shuffle(tools)
    return [make_exec_command(), *tools]


def make_server_tools(words: WordSampler) -> list[ToolDefinition]:
    """Returns the tools of one MCP server, whose name is the namespace of their names."""
    server, tools = words.made_up(), []
    for _ in range(words.random.randint(2, 8)):
        verb, noun = words.pick_word(words.verbs), words.pick_noun()
        params = tool_definitions.make_parameters(words, words.random.choice((0, 1, 1, 2, 3)))
        tools.append(tool_definitions.make_tool(f"mcp__{server}__{verb}_{noun}", params))
    return tools


def make_codex_context(words: WordSampler) -> list[ChatMessage]:
    """Returns the messages that Codex sends before the user's first: instructions and the environment."""
    date = f"2026-{words.random.randint(1, 12):02d}-{words.random.randint(1, 28):02d}"
    environment = (
        f"<environment_context>\n  <cwd>{phrases.make_path(words)}</cwd>\n  <shell>bash</shell>\n"
        f"  <current_date>{date}</current_date>\n  <timezone>Etc/UTC</timezone>\n</environment_context>"
    )
    return [{"role": "developer", "content": INSTRUCTIONS}, user_message(environment)]
