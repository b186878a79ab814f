"""Generated text: phrases to repeat, commands to run, outputs to report, values to look up.

Every word is drawn from a `WordSampler`, so each text belongs to one side of the train/evaluation split. Dialogues are
built elsewhere.
"""

from __future__ import annotations

from training.fixed_texts import ERRORS
from training.word_sampler import PROGRAMS, SUFFIXES, WordSampler

UNICODE = ["é", "ü", "ø", "ñ", "ß", "—", "…", "→", "✓", "°", "€", "日", "本", "Ж", "λ", "😀", "🎵"]
ROOTS = ["", "", "", "./", "/", "../", "~/", "/tmp/"]  # noqa: S108 - only a word here
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
ENDINGS = ["", "", "", ".", "!", ",", ";", ":"]


def make_term(words: WordSampler) -> str:
    """Returns a word, number or code: in lower or upper case, joined by punctuation, or with a non-ASCII character."""
    draw = words.random.random()
    if draw < 0.5:
        return words.any_word()
    if draw < 0.62:
        return words.any_word().capitalize()
    if draw < 0.72:
        return words.make_number()
    if draw < 0.82:
        return f"{words.any_word()}-{words.make_number()}"
    if draw < 0.88:
        return words.any_word().upper()
    if draw < 0.94:
        return f"{words.any_word()}{words.random.choice('_.-/:@=+')}{words.any_word()}"
    return words.any_word() + words.random.choice(UNICODE)


def make_phrase(words: WordSampler, low: int = 1, high: int = 8) -> str:
    """Returns a few terms, with punctuation between some of them. The last has none, to keep closing quotes clear."""
    terms = [make_term(words) for _ in range(words.random.randint(low, high))]
    return (
        " ".join(term + words.random.choice(ENDINGS) for term in terms[:-1])
        + (" " if len(terms) > 1 else "")
        + terms[-1]
    )


def make_path(words: WordSampler) -> str:
    """Returns a relative, absolute or home path."""
    parts = [words.any_word() for _ in range(words.random.randint(1, 3))]
    suffix = f".{words.random.choice(SUFFIXES)}" if words.flip_coin(0.6) else ""
    return words.random.choice(ROOTS) + "/".join(parts) + suffix


def make_argument(words: WordSampler) -> str:
    """Returns one argument of a command."""
    choose, draw = words.random.choice, words.random.random()
    if draw < 0.2:
        return "-" + "".join(words.random.choices("abcdefhilnoprstuvxACEHRS", k=choose((1, 1, 2, 2, 3))))
    if draw < 0.3:
        return "--" + words.any_word() + (f"={words.any_word()}" if words.flip_coin(0.4) else "")
    if draw < 0.55:
        return make_path(words)
    if draw < 0.65:
        return words.make_number()
    if draw < 0.8:
        return f"{words.any_word()}-{words.make_number()}"
    if draw < 0.84:
        return choose(("*.", "$", "{", "%", "@", "\\")) + words.any_word()
    return words.any_word()


def make_quotation(words: WordSampler) -> str:
    """Returns quoted text for a command line."""
    quote = '"' if words.flip_coin(0.6) else "'"
    return quote + " ".join(words.any_word() for _ in range(words.random.randint(1, 4))) + quote


def make_command(words: WordSampler) -> str:
    """Returns a shell command of one to six words, sometimes with quotes, a pipe or a second command."""
    program = words.pick_word(PROGRAMS) if words.flip_coin(0.7) else words.any_word()
    parts = [program] + [make_argument(words) for _ in range(words.random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    if words.flip_coin(0.15):
        parts.append(make_quotation(words))
    command = " ".join(parts)
    if words.flip_coin(0.1):
        operator = words.random.choice((" | ", " && ", "; ", " > "))
        command += operator + words.pick_word(PROGRAMS) + " " + make_argument(words)
    return command


def make_value(words: WordSampler) -> str:
    """Returns the value a question is about: a name, a code, a number, a path, a few words."""
    draw = words.random.random()
    if draw < 0.45:
        return words.pick_name()
    if draw < 0.6:
        return f"{words.pick_name()} {words.pick_name()}"
    if draw < 0.7:
        return f"{words.any_word()}-{words.make_number()}"
    if draw < 0.78:
        return make_path(words)
    if draw < 0.86:
        return words.make_number()
    return " ".join(words.any_word() for _ in range(words.random.randint(1, 3)))


def make_listing_line(words: WordSampler) -> str:
    """Returns a line of a long directory listing."""
    mode, size, day = (
        words.random.choice(("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x")),
        words.make_number(4),
        words.make_number(2),
    )
    owner, month = words.random.choice(("root", words.any_word())), words.random.choice(MONTHS)
    return (
        f"{mode} {words.make_number(1)} {owner} {owner} {size} {month} {day} {words.make_number()} {make_path(words)}"
    )


def make_output_line(words: WordSampler, draw: float) -> str:
    """Returns one line of tool output. `draw`, in [0, 0.8), selects words, a code, a number, JSON, a sentence or ''."""
    if draw < 0.35:
        return make_phrase(words, 1, 6)
    if draw < 0.5:
        return f"{words.any_word()}-{words.make_number()}"
    if draw < 0.58:
        return words.make_number()
    if draw < 0.68:
        return f'{{"{words.pick_noun()}": "{words.any_word()}", "{words.pick_noun()}": {words.make_number()}}}'
    if draw < 0.78:
        return f"{words.pick_noun()}: {make_phrase(words, 1, 3)}, {words.make_number(2)} {words.any_word()}"
    return ""


def make_output(words: WordSampler) -> str:
    """Returns a tool's output: one line, an error, or several lines of a listing or of text."""
    draw = words.random.random()
    if draw < 0.8:
        return make_output_line(words, draw)
    line_count = words.random.randint(2, 5)
    if draw < 0.84:
        return words.random.choice(ERRORS).replace("{}", make_path(words))
    if draw < 0.88:
        return "\n".join(make_listing_line(words) for _ in range(line_count - 1))
    if draw < 0.94:
        return "\n".join(make_path(words) for _ in range(line_count))
    return "\n".join(make_phrase(words, 1, 4) for _ in range(line_count))


def fill_wording(words: WordSampler, form: str) -> str:
    """Replaces each `{}` of a wording by its own word and every `{path}` by one path."""
    while "{}" in form:
        form = form.replace("{}", words.any_word(), 1)
    return form.replace("{path}", make_path(words))


def frame_output(words: WordSampler, text: str) -> str:
    """Returns a command's output in the Codex CLI's frame."""
    chunk_id = "".join(words.random.choices("0123456789abcdef", k=6))
    seconds = f"{words.random.random():.4f}"
    exit_code = words.random.choice(("0", "0", "0", "1", "2", "127"))
    token_count = max(1, len(text) // 4)
    return (
        f"Chunk ID: {chunk_id}\nWall time: {seconds} seconds\nProcess exited with code {exit_code}\n"
        f"Original token count: {token_count}\nOutput:\n{text}" + ("\n" if words.flip_coin(0.7) else "")
    )
