"""Requests to create, change and delete files, and the patches that do it.

Words and paths are drawn from a `WordSampler`. The wordings are not in `wordings.py`, because the tokenizer's corpus
draws from its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from training import phrases, shell_commands
from training.word_sampler import SUFFIXES, WordSampler

CREATES = [
    *["create the file <path> with the text <text>"] * 3,
    *["create a file <path> with the text <text>"] * 2,
    "create the file <path> with the content <text>",
    "create the file <path> containing <text>",
    "create a file named <path> with the text <text>",
    "create a file named <path> containing <text>",
    "create a file called <path> that says <text>",
    "create a file called <path> with the text <text>",
    "create a new file <path> with the line <text>",
    "create <path> with the text <text>",
    "create <path> containing <text>",
    "create <path> with <text> in it",
    "create <path>: <text>",
    "make a file <path> with the text <text>",
    "make the file <path> that contains <text>",
    "add the file <path> with the text <text>",
    "add a file <path> containing <text>",
    "write the file <path> with the text <text>",
    "write <text> into the file <path>",
    "write <text> to the file <path>",
    "write <text> to <path>",
    "write <text> into a new file <path>",
    "put <text> into the file <path>",
    "save <text> to <path>",
    "save the text <text> as <path>",
]
"""Requests to create a file of one line."""
EMPTY_CREATES = ["create the file <path>", "create an empty file <path>", "create the empty file <path>"]
"""Requests to create a file without text."""
DELETES = [
    *["delete the file <path>"] * 4,
    *["delete <path>"] * 2,
    "delete the file named <path>",
    "delete the file called <path>",
    *["remove the file <path>"] * 2,
    "remove <path>",
    "erase the file <path>",
    "get rid of the file <path>",
    "drop the file <path>",
]
"""Requests to delete a file."""
UPDATES = [
    *["in the file <path> replace <old> by <new>"] * 2,
    *["in the file <path> replace <old> with <new>"] * 2,
    "in the file <path>, replace <old> by <new>",
    "in <path> replace <old> by <new>",
    "in <path>, replace <old> with <new>",
    "in <path>: replace <old> with <new>",
    "in <path> replace the line <old> by <new>",
    "replace <old> by <new> in <path>",
    "replace <old> with <new> in <path>",
    "replace <old> with <new> in the file <path>",
    "replace the text <old> with <new> in <path>",
    "replace the line <old> by the line <new> in <path>",
    *["change <old> to <new> in <path>"] * 3,
    *["change <old> to <new> in the file <path>"] * 2,
    "change <old> into <new> in <path>",
    "change the line <old> to <new> in <path>",
    "change the text <old> to <new> in the file <path>",
    *["in the file <path> change <old> to <new>"] * 2,
    "in <path> change <old> to <new>",
    "in <path>, change the line <old> to <new>",
    "edit <path>: change <old> to <new>",
    "edit the file <path> and replace <old> with <new>",
    "update <path>: replace <old> by <new>",
    "update the file <path>, change <old> to <new>",
]
"""Requests to replace one line of a file."""
TWO_DELETES = ["delete <path> and <second>", "delete the files <path> and <second>", "remove <path> and <second>"]
JOINTS = [" and ", " and then ", ", then ", "; "]
"""Texts between the two requests of one patch."""
QUOTES = ["{}"] * 8 + ['"{}"'] * 3 + ["'{}'", "`{}`", "`{}`"]
PATH_QUOTES = ["{}"] * 8 + ["`{}`", '"{}"']
CODE = ["<w>(<n>)", "<w> = <n>", '<w>("<w>")', "<w>: <w>", "import <w>", "def <w>():", "# <w> <w>", "- <w>", "<w>=<w>"]
"""Lines of programs and notes, with the marks of `shell_commands`."""
SEPARATORS = frozenset("and as at by file in into it line text the then to with".split())
"""Words that end a text without quotation marks."""
SHARED_WORDS = frozenset(("change", "created", "remove"))
"""Words of the requests and their outcomes that evaluation draws, too. They are grammar on both sides."""
Operation = tuple[str, str]
"""Path of the changed file, and its section of the patch."""


def make_file_path(words: WordSampler) -> str:
    """Returns the path of a file: mostly a name with a suffix, sometimes in a folder."""
    if words.flip_coin(0.15):
        return phrases.make_path(words)
    folder = f"{words.any_word()}/" if words.flip_coin(0.25) else ""
    suffix = "" if words.flip_coin(0.1) else f".{words.random.choice(['txt', 'txt', 'md', 'py', *SUFFIXES])}"
    return f"{folder}{words.any_word()}{suffix}"


def make_line(words: WordSampler, quote: str) -> str:
    """Returns a line of a file that the request writes as `quote` says: without marks, its end must be clear."""
    while True:
        draw = words.random.random()
        if draw < 0.5:
            text = " ".join(words.any_word() for _ in range(words.random.choice((1, 1, 1, 2, 2, 3, 4, 6))))
        elif draw < 0.8:
            text = phrases.make_phrase(words, 1, 5)
        else:
            text = shell_commands.fill_form(words, words.random.choice(CODE))
        if quote == "{}":
            has_clear_end = SEPARATORS.isdisjoint(re.findall(r"\w+", text.lower()))
        else:
            has_clear_end = quote[0] not in text
        if has_clear_end and not text.endswith((".", ",", ";", ":")):
            return text


def write_request(words: WordSampler, wording: str, values: dict[str, str], quote: str) -> str:
    """Fills in a wording's marks: texts in quotation marks of one kind, and paths."""
    for mark, value in values.items():
        form = words.random.choice(PATH_QUOTES) if mark in ("<path>", "<second>") else quote
        wording = wording.replace(mark, form.format(value), 1)
    return wording


def make_creation(words: WordSampler) -> tuple[str, Operation]:
    """Returns a request to create a file, and its section of the patch."""
    path, quote = make_file_path(words), words.random.choice(QUOTES)
    text = "" if words.flip_coin(0.07) else make_line(words, quote)
    wording = words.random.choice(CREATES if text else EMPTY_CREATES)
    request = write_request(words, wording, {"<path>": path, "<text>": text}, quote)
    return request, (path, f"*** Add File: {path}\n+{text}\n")


def make_deletion(words: WordSampler) -> tuple[str, Operation]:
    """Returns a request to delete a file, and its section of the patch."""
    path = make_file_path(words)
    request = write_request(words, words.random.choice(DELETES), {"<path>": path}, "{}")
    return request, (path, f"*** Delete File: {path}\n")


def make_update(words: WordSampler) -> tuple[str, Operation]:
    """Returns a request to replace a line, and its section of the patch."""
    path, quote = make_file_path(words), words.random.choice(QUOTES)
    old, new = make_line(words, quote), make_line(words, quote)
    values = {"<path>": path, "<old>": old, "<new>": new}
    request = write_request(words, words.random.choice(UPDATES), values, quote)
    return request, (path, f"*** Update File: {path}\n@@\n-{old}\n+{new}\n")


def make_file_request(words: WordSampler) -> tuple[str, list[Operation]]:
    """Returns a request to change one file, rarely two, and the sections of the patch."""
    makers: list[Callable[[WordSampler], tuple[str, Operation]]] = [make_creation, make_update, make_deletion]
    draw = words.random.random()
    if draw < 0.04:
        paths = make_file_path(words), make_file_path(words)
        values = dict(zip(("<path>", "<second>"), paths, strict=True))
        text = write_request(words, words.random.choice(TWO_DELETES), values, "{}")
        return style_file_request(words, text), [(path, f"*** Delete File: {path}\n") for path in paths]
    chosen = words.random.choices(makers, (4, 4, 2), k=2 if draw < 0.14 else 1)
    requests, operations = zip(*(make(words) for make in chosen), strict=True)
    return style_file_request(words, words.random.choice(JOINTS).join(requests)), list(operations)


def style_file_request(words: WordSampler, text: str) -> str:
    """Varies a request: capitalized or not, politely, ended by a full stop only after a quotation mark or a path."""
    text = ("please " if words.flip_coin(0.15) else "") + text
    text = text[0].upper() + text[1:] if words.flip_coin(0.5) else text
    has_clear_end = text[-1] in "\"'`" or re.search(r"[./]\w+$", text)
    return text + ("." if has_clear_end and words.flip_coin(0.15) else "")


def write_patch(operations: list[Operation]) -> str:
    """Returns the patch of the operations."""
    return "".join(["*** Begin Patch\n", *(section for _, section in operations), "*** End Patch"])
