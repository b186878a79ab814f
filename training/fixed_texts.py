"""Texts with a fixed wording in every dialogue: answers, reasoning, errors, and the tools that real clients define.

The evaluation draws none of their words (`FIXED_WORDS`): a model that saw a word in one sentence only has learned the
sentence, not how to copy the word. Dialogues are built elsewhere.
"""

import re

from training import wordings

GREETING = "Hello! I am Antiphon's embedded model."
IDENTITY = "I am Antiphon's embedded model. I can greet, repeat, add and call tools."
BEYOND = "That is beyond me. I can greet, repeat, add and call tools."
NO_TOOL = "I have no tool for that."
NO_PICTURE = "I see no picture."
"""No part of the tokenizer's corpus, which is older. Its words are not held out."""
EMPTY = "There was no output."
MET = "Nice to meet you, {}."
NAMED = "Your name is {}."
REMEMBERED = "I will remember it."
NOTED = "Noted: your {} is {}."
RECALLED_FACT = "Your {} is {}."
THOUGHTS = "A greeting. They ask about me. Repeat it. Report it. Report them. From the turn before. Note it. Twice."
ERRORS = [
    "bash: {}: command not found",
    "ls: cannot access '{}': No such file or directory",
    "cat: {}: Permission denied",
    "Error: {} is not a directory",
    "unsupported call: {}",
    "fatal: not a git repository: {}",
]
RUNNERS = ["run", "exec", "execute", "shell", "bash", "command", "terminal"]
"""Words in the name of a tool that runs commands."""
WELL_KNOWN_RUNNERS = [
    *[("exec_command", "cmd")] * 3,
    ("shell", "command"),
    ("bash", "command"),
    ("run_command", "command"),
    ("shell_command", "command"),
    ("run", "cmd"),
    ("terminal", "command"),
    ("execute_command", "command"),
    ("run_shell_command", "command"),
    ("exec", "input"),
]
"""Name and parameter of the command tools of real clients; repeated entries are drawn more often."""
CODEX = [
    ("write_stdin", ["session_id:number"]),
    ("request_user_input", ["questions"]),
    ("view_image", ["path"]),
    ("multi_agent_v1__close_agent", ["target"]),
    ("multi_agent_v1__resume_agent", ["id"]),
    ("multi_agent_v1__send_input", ["target"]),
    ("multi_agent_v1__spawn_agent", ["fork_context:boolean", "items", "message", "model"]),
    ("multi_agent_v1__wait_agent", ["targets"]),
    ("get_goal", []),
    ("create_goal", ["objective"]),
    ("update_goal", ["status"]),
    ("update_plan", ["plan"]),
    ("apply_patch", ["input"]),
    ("wait", ["cell_id"]),
    ("list_mcp_resources", ["server", "cursor"]),
    ("web_search", ["query"]),
]
"""Name and parameters of the other tools of the Codex CLI."""


def _fixed_texts() -> list[str]:
    """Returns the fixed texts, the wordings of requests and the words of well-known tools."""
    answers = [
        GREETING,
        IDENTITY,
        BEYOND,
        NO_TOOL,
        EMPTY,
        MET,
        NAMED,
        REMEMBERED,
        NOTED,
        RECALLED_FACT,
        THOUGHTS,
        *ERRORS,
    ]
    requests = [wording for value in vars(wordings).values() if isinstance(value, list) for wording in value]
    codex_words = [word for name, params in CODEX for word in (name, *params)]
    return [*answers, *requests, *codex_words, *(word for pair in WELL_KNOWN_RUNNERS for word in pair)]


FIXED_WORDS: list[str] = sorted({word.lower() for text in _fixed_texts() for word in re.findall(r"[A-Za-z]{2,}", text)})
"""Words of two or more letters in the fixed texts, in lower case."""
