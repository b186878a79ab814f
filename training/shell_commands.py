"""Shell commands with the shell's own punctuation, and requests that name no command but stand for one.

Words, numbers and paths are drawn from a `WordSampler`. A request without a command is composed of fixed parts; a hash
of the whole request assigns it to training or evaluation, like a word.
"""

from __future__ import annotations

from collections.abc import Callable

from training import phrases
from training.word_sampler import PROGRAMS, SUFFIXES, WordSampler, is_held_out

ARGUMENTS = [
    *["$((<n><op><n>))"] * 3,
    "$(( <n> <op> <n> ))",
    "$((<w><op><n>))",
    "<w>-$((<n> <op> <n>))",
    "$(<p>)",
    "$(<p> <w>)",
    "$(<p> +%<l>)",
    "$<w>",
    "${<w>}",
    "${<w>:-<w>}",
    "${<w>:<n>}",
    '"$<w>"',
    "'<w> <w>'",
    "'<w>, <w>'",
    '"<w> <w>"',
    '"<w>: $<w>"',
    "'{<w> $<n>}'",
    "'<w>(<n><op><n>)'",
    "'<w>(\"<w>\")'",
    '"<w>(<n>)"',
    "'<n>,<n>p'",
    "'<n><op><n>'",
    "'s/<w>/<w>/'",
    "s/<w>/<w>/g",
    r"'%<l>\n'",
    r"'<w>\n'",
    r'"<w>\t<w>"',
    r"\<w>",
    "'*.<s>'",
    "*.<s>",
    "-<l>",
    "-<l><l>",
    "-<l><n>",
    "--<w>",
    "--<w>=<w>",
    "+%<l>",
    "<w>=<n>",
    "<w>:<n>",
    "[<w>]",
    "{<w>,<w>}",
    "<w>@<w>.<w>",
    "https://<w>.<w>/<w>?<w>=<n>&<w>=<w>",
    "<n>",
    "<w>",
    "<w>",
    "<path>",
    "<path>",
    ".",
    "/",
    "~",
]
"""Arguments. `<w>` is a word, `<n>` a number, `<p>` a program, `<l>` a letter, `<op>` an operator, `<s>` a suffix."""
COMMANDS = [
    *["<c>"] * 12,
    *["<p> <w>"] * 4,
    "ls -<l><l>",
    "ls <a>",
    "ls -<l> <a>",
    "ls <a> | <c>",
    "<c> | <c>",
    "<c> | <c> | <c>",
    "<c> && <c>",
    "<c> && <c>",
    "<c> || <c>",
    "<c>; <c>",
    "<c> > <path>",
    "<c> >> <path>",
    "<c> < <path>",
    "<c> 2>&1",
    "<c> 2>/dev/null",
    "<c> &",
    "! <c>",
    "(<c>)",
    "(<c> && <c>)",
    "<w>=<n> <c>",
    "for <l> in <n> <n> <w>; do <c>; done",
    "for <w> in <w> <w>; do <p> $<w>; done",
    "while <c>; do <c>; done",
    "if <c>; then <c>; fi",
    "[ <a> = <a> ] && <c>",
    "./<path>",
    "../<w> <a>",
]
"""Forms of commands. `<c>` is a program with arguments, `<a>` an argument."""
LISTING_VERBS = ["list", "show", "show me", "display", "print", "give me", "please list", "can you list", "please show"]
LISTED = ["the files", "all files", "files", "all the files", "the files and folders", "the contents", "every file"]
PLACES = [
    "in this folder",
    "in this directory",
    "in the current directory",
    "in the current folder",
    "in the working directory",
    "of this folder",
    "of the current directory",
    "of this directory",
    "that are in this folder",
    "in my current folder",
]
LISTING_QUESTIONS = [
    "what files are {}",
    "which files are {}",
    "which files are there {}",
    "what files do you see {}",
    "which files can you see {}",
    "what files are there {}",
    "which files and folders are {}",
    "tell me what files are {}",
    "tell me which files are {}",
]
FOLDER_QUESTIONS = [
    "what is in this folder",
    "what's in this folder",
    "what is in this directory",
    "what's in the current directory",
    "what is in the current folder",
]
BRIEF_LISTINGS = ["list files", "list all files", "list the files", "show the files", "show files", "list the folder"]
LOCATING_VERBS = ["show", "show me", "print", "tell me", "give me", "display", "what is", "what's", "please print"]
LOCATIONS = [
    "the current directory",
    "the working directory",
    "the current folder",
    "the current working directory",
    "the path of this folder",
    "the path of the current directory",
    "the name of the current directory",
    "your working directory",
    "your current directory",
    "my current directory",
]
LOCATION_QUESTIONS = [
    "where am I",
    "where are we",
    "where are you",
    "which directory am I in",
    "which directory are we in",
    "which folder am I in",
    "which folder is this",
    "which directory is this",
    "what directory are you in",
    "what folder are we in",
    "in which directory are we",
    "in which folder am I",
    "what is this folder called",
]


def make_shell_command(words: WordSampler) -> str:
    """Returns a command: one word, a program with common arguments, or one with the shell's punctuation."""
    draw = words.random.random()
    if draw < 0.15:
        return pick_program(words)
    if draw < 0.35:
        return phrases.make_command(words)
    form = words.random.choice(COMMANDS)
    while "<c>" in form:
        form = form.replace("<c>", _make_simple_command(words), 1)
    while "<a>" in form:
        form = form.replace("<a>", words.random.choice(ARGUMENTS), 1)
    return fill_form(words, form)


def pick_program(words: WordSampler) -> str:
    """Draws a program: mostly a known one, else any word or a made-up one."""
    return words.pick_word(PROGRAMS) if words.flip_coin(0.7) else words.any_word().lower()


def _make_simple_command(words: WordSampler) -> str:
    count = words.random.choice((0, 1, 1, 1, 1, 2, 2, 3))
    return " ".join(["<p>", *words.random.choices(ARGUMENTS, k=count)])


def fill_form(words: WordSampler, form: str) -> str:
    """Replaces the marks in angle brackets by drawn text."""
    choose = words.random.choice
    makers: dict[str, Callable[[], str]] = {
        "<w>": lambda: _vary_case(words, words.any_word()),
        "<n>": lambda: words.make_number(words.random.randint(1, 4)),
        "<p>": lambda: pick_program(words),
        "<l>": lambda: choose("abcdefghijklmnopqrstuvwxyzABCEHLNRSTVY"),
        "<op>": lambda: choose("+-*/%"),
        "<s>": lambda: choose(SUFFIXES),
        "<path>": lambda: phrases.make_path(words),
    }
    for mark, make in makers.items():
        while mark in form:
            form = form.replace(mark, make(), 1)
    return form


def _vary_case(words: WordSampler, word: str) -> str:
    return word.upper() if words.flip_coin(0.15) else word


def make_implied_command(words: WordSampler) -> tuple[str, str]:
    """Returns a request that names no command, and the command: `ls` or `pwd`."""
    while True:
        text, command = (_listing_request if words.flip_coin(0.55) else _location_request)(words)
        if is_held_out(text) == words.evaluation:
            return text, command


def _listing_request(words: WordSampler) -> tuple[str, str]:
    choose, draw = words.random.choice, words.random.random()
    if draw < 0.15:
        return choose(BRIEF_LISTINGS), "ls"
    if draw < 0.25:
        return choose(FOLDER_QUESTIONS), "ls"
    if draw < 0.5:
        return choose(LISTING_QUESTIONS).format(choose(PLACES)), "ls"
    return f"{choose(LISTING_VERBS)} {choose(LISTED)} {choose(PLACES)}", "ls"


def _location_request(words: WordSampler) -> tuple[str, str]:
    if words.flip_coin(0.4):
        return words.random.choice(LOCATION_QUESTIONS), "pwd"
    return f"{words.random.choice(LOCATING_VERBS)} {words.random.choice(LOCATIONS)}", "pwd"
