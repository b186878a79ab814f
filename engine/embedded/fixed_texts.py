"""What the embedded model says and reads in the same words every time: answers, errors, the tools that everybody has.

Evaluation copies none of these words (`SPOKEN`): a model that met a word in one sentence only has learned the sentence.
Knows no dialogue.
"""

import re

from antiphon.engine.embedded import wordings

GREETING = "Hello! I am Antiphon's embedded model."
IDENTITY = "I am Antiphon's embedded model. I can greet, repeat, add and call tools."
BEYOND = "That is beyond me. I can greet, repeat, add and call tools."
NO_TOOL = "I have no tool for that."
EMPTY = "There was no output."
MET = "Nice to meet you, {}."
NAMED = "Your name is {}."
REMEMBERED = "I will remember it."
NOTED = "Noted: your {} is {}."
TOLD = "Your {} is {}."
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


def _fixed_texts() -> list[str]:
    """Every fixed text."""
    answers = [GREETING, IDENTITY, BEYOND, NO_TOOL, EMPTY, MET, NAMED, REMEMBERED, NOTED, TOLD, THOUGHTS, *ERRORS]
    asked = [form for forms in vars(wordings).values() if isinstance(forms, list) for form in forms]
    named = [word for name, params in CODEX for word in (name, *params)]
    return [*answers, *asked, *named, *(word for pair in WELL_KNOWN_RUNNERS for word in pair)]


FIXED_WORDS: list[str] = sorted({word.lower() for text in _fixed_texts() for word in re.findall(r"[A-Za-z]{2,}", text)})
"""Every word of them, in lower case."""
