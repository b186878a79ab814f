"""Prints `docs/reference/checks.md`, which explains every code: `python -m tests.kit.checker.codes_page > docs/reference/checks.md`."""

import sys
from itertools import groupby

from antiphon.kit.findings import load_codes

INTRODUCTION = """# Is your stream right?

Every finding of `antiphon check`, of the pytest plugin and of `antiphon check --proxy` has a code from this page. A
code never changes its meaning, so that a build can depend on it.

- An **error** breaks some client that is made for OpenAI's API: the last column names what happens.
- A **warning** may break one: a strict one, one that was made for another year, or one that counts on what is usual.
- A **note** is a known difference between servers that clients accept.

What OpenAI itself sends is no error, because clients are made for it. The checker is held to recorded streams of OpenAI
and DeepSeek (`tests/kit/checker/recorded`), those of early 2025 among them, which lack fields that came later.

The checker is an acceptor of its own. It shares no code with Antiphon's state machine, and each of its rules is tested
by streams that break it (`tests/kit/checker`). It accepts the event grammar of the Responses API: `response.created`,
then items one after the other, each with its parts, then one terminal event whose output is the list of the items that
were done. An item of a tool that the server runs stays open while the tool runs; a stage that is repeated inside it, and
`response.in_progress` after it, keep the stream alive. What was cut stands last in the output, as incomplete. Items of the final response belong to those of the stream by their ids, so that one item too many is one
finding. With the request, the checker tests whether the reply follows it; settings that the request decides are read
from the request, not from the response. Texts and arguments are held to their JSON Schemas if the package jsonschema is
installed: `pip install 'antiphon[kit]'`.

This page is printed from `kit/codes.toml` by `python -m tests.kit.checker.codes_page`.
"""
TITLES = {
    "framing": "Frames on the wire",
    "sequence": "Events and their numbers",
    "lifecycle": "The life of a response",
    "items": "Output items",
    "content": "Parts, deltas and done events",
    "terminal": "The final response",
    "usage": "Token counts",
    "policy": "Settings of the request",
    "chat": "Chat completions",
    "http": "HTTP replies",
    "live": "A server as a whole",
}


def format_page() -> str:
    """Returns the page as Markdown: one table for each group of codes."""
    lines = [INTRODUCTION]
    for group, codes in groupby(load_codes().values(), key=lambda code: code.group):
        lines += [f"## {TITLES.get(group, group.capitalize())}", "", "| code | level | rule | why clients care |"]
        lines.append("| --- | --- | --- | --- |")
        lines += [f"| `{code.name}` | {code.level} | {code.title} | {code.why} |" for code in codes]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(format_page())
