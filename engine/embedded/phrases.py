"""Running text: phrases to repeat, commands to run, outputs to report, values to look up.

Draws every word from a `Words`, so each text lies on one side of the partition. Knows no dialogue.
"""

from __future__ import annotations

from antiphon.engine.embedded.fixed import ERRORS
from antiphon.engine.embedded.words import PROGRAMS, SUFFIXES, Words

UNICODE = ["é", "ü", "ø", "ñ", "ß", "—", "…", "→", "✓", "°", "€", "日", "本", "Ж", "λ", "😀", "🎵"]
ROOTS = ["", "", "", "./", "/", "../", "~/", "/tmp/"]  # noqa: S108 - only a word here
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
ENDINGS = ["", "", "", ".", "!", ",", ";", ":"]


def term(words: Words) -> str:
    """One word, number or code, in any dress."""
    draw = words.random.random()
    if draw < 0.5:
        return words.any_word()
    if draw < 0.62:
        return words.any_word().capitalize()
    if draw < 0.72:
        return words.number()
    if draw < 0.82:
        return f"{words.any_word()}-{words.number()}"
    if draw < 0.88:
        return words.any_word().upper()
    if draw < 0.94:
        return f"{words.any_word()}{words.random.choice('_.-/:@=+')}{words.any_word()}"
    return words.any_word() + words.random.choice(UNICODE)


def phrase(words: Words, low: int = 1, high: int = 8) -> str:
    """A few terms in a row, with some punctuation inside and none that closes a quotation."""
    terms = [term(words) for _ in range(words.random.randint(low, high))]
    return " ".join(t + words.random.choice(ENDINGS) for t in terms[:-1]) + (" " if len(terms) > 1 else "") + terms[-1]


def path(words: Words) -> str:
    """A relative, absolute or home path."""
    parts = [words.any_word() for _ in range(words.random.randint(1, 3))]
    last = f".{words.random.choice(SUFFIXES)}" if words.maybe(0.6) else ""
    return words.random.choice(ROOTS) + "/".join(parts) + last


def argument(words: Words) -> str:
    """One argument of a command."""
    choose, draw = words.random.choice, words.random.random()
    if draw < 0.2:
        return "-" + "".join(words.random.choices("abcdefhilnoprstuvxACEHRS", k=choose((1, 1, 2, 2, 3))))
    if draw < 0.3:
        return "--" + words.any_word() + (f"={words.any_word()}" if words.maybe(0.4) else "")
    if draw < 0.55:
        return path(words)
    if draw < 0.65:
        return words.number()
    if draw < 0.8:
        return f"{words.any_word()}-{words.number()}"
    if draw < 0.84:
        return choose(("*.", "$", "{", "%", "@", "\\")) + words.any_word()
    return words.any_word()


def quoted(words: Words) -> str:
    """Quoted text within a command."""
    mark = '"' if words.maybe(0.6) else "'"
    return mark + " ".join(words.any_word() for _ in range(words.random.randint(1, 4))) + mark


def command(words: Words) -> str:
    """A shell command, of one to six words, sometimes with quotes, a pipe or a second command."""
    program = words.pick(PROGRAMS) if words.maybe(0.7) else words.any_word()
    parts = [program] + [argument(words) for _ in range(words.random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    if words.maybe(0.15):
        parts.append(quoted(words))
    line = " ".join(parts)
    if words.maybe(0.1):
        joint = words.random.choice((" | ", " && ", "; ", " > "))
        line += joint + words.pick(PROGRAMS) + " " + argument(words)
    return line


def value(words: Words) -> str:
    """What a question is about: a place, a code, a number, a path, a few words."""
    draw = words.random.random()
    if draw < 0.45:
        return words.proper()
    if draw < 0.6:
        return f"{words.proper()} {words.proper()}"
    if draw < 0.7:
        return f"{words.any_word()}-{words.number()}"
    if draw < 0.78:
        return path(words)
    if draw < 0.86:
        return words.number()
    return " ".join(words.any_word() for _ in range(words.random.randint(1, 3)))


def listed(words: Words) -> str:
    """A line of a long directory listing."""
    mode, size, day = words.random.choice(("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x")), words.number(4), words.number(2)
    owner, month = words.random.choice(("root", words.any_word())), words.random.choice(MONTHS)
    return f"{mode} {words.number(1)} {owner} {owner} {size} {month} {day} {words.number()} {path(words)}"


def line(words: Words, draw: float) -> str:
    """A line that a tool printed: words, a code, a number, JSON, a sentence, nothing; `draw` below 0.8 decides."""
    if draw < 0.35:
        return phrase(words, 1, 6)
    if draw < 0.5:
        return f"{words.any_word()}-{words.number()}"
    if draw < 0.58:
        return words.number()
    if draw < 0.68:
        return f'{{"{words.noun()}": "{words.any_word()}", "{words.noun()}": {words.number()}}}'
    if draw < 0.78:
        return f"{words.noun()}: {phrase(words, 1, 3)}, {words.number(2)} {words.any_word()}"
    return ""


def output(words: Words) -> str:
    """What a tool printed: a line, an error, or several lines of a listing or of text."""
    draw = words.random.random()
    if draw < 0.8:
        return line(words, draw)
    lines = words.random.randint(2, 5)
    if draw < 0.84:
        return words.random.choice(ERRORS).replace("{}", path(words))
    if draw < 0.88:
        return "\n".join(listed(words) for _ in range(lines - 1))
    if draw < 0.94:
        return "\n".join(path(words) for _ in range(lines))
    return "\n".join(phrase(words, 1, 4) for _ in range(lines))


def filled(words: Words, form: str) -> str:
    """A wording with each `{}` made a word and each `{path}` a path."""
    while "{}" in form:
        form = form.replace("{}", words.any_word(), 1)
    return form.replace("{path}", path(words))


def framed(words: Words, text: str) -> str:
    """A command's output as the Codex CLI frames it."""
    chunk = "".join(words.random.choices("0123456789abcdef", k=6))
    wall = f"{words.random.random():.4f}"
    code = words.random.choice(("0", "0", "0", "1", "2", "127"))
    count = max(1, len(text) // 4)
    return (
        f"Chunk ID: {chunk}\nWall time: {wall} seconds\nProcess exited with code {code}\n"
        f"Original token count: {count}\nOutput:\n{text}" + ("\n" if words.maybe(0.7) else "")
    )
