"""Facts about regular expressions that clients and models bring, read from their text and never by running them.

Python's matcher backtracks: `((){60000}){60000}` keeps it busy for ever, even on an empty text. Clients write their
expressions in the syntax of llguidance, that of Rust's `regex`, and have them compiled there. Those of a model's
repository are in Python's syntax, and only the simplest ones are used.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

_ATOM = re.compile(
    r"""(?P<open>\((?:\?(?:P?<(?![=!])\w*>|[a-zA-Z-]*:)?)?)    # a group that captures, has flags, or neither
      | (?P<close>\))
      | (?P<branch>\|)
      | (?P<anchor>[\^$]|\\[AbBzZG])
      | (?P<repeat>[*+?]|\{[0-9]*(?:,[0-9]*)?\})
      | (?P<atom>\\(?:[pPxuU]\{[^}]{0,64}\}|.)|.)""",
    re.VERBOSE | re.DOTALL,
)
_FLAGS_PATTERN = re.compile(r"\(\?[a-zA-Z-]*\)")
_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
MAX_BRANCHES = 64
"""Maximum number of ways through the alternatives of a simple expression."""


class PatternPart(Struct, frozen=True):
    """A part of an expression. `kind`: open, close, branch, anchor, repeat, or atom, which matches one character."""

    kind: str
    text: str


def split_pattern(pattern: str) -> Iterator[PatternPart]:
    """Yields the parts of an expression. What is no expression yields some parts, too."""
    index = 0
    while index < len(pattern):
        if flags := _FLAGS_PATTERN.match(pattern, index):
            kind, end = "anchor", flags.end()
        elif pattern[index] == "[":
            kind, end = "atom", _find_class_end(pattern, index)
        else:
            match = _ATOM.match(pattern, index)
            assert match is not None and match.lastgroup is not None  # the last alternative matches any character
            kind, end = match.lastgroup, match.end()
        yield PatternPart(kind, pattern[index:end])
        index = end


def _find_class_end(pattern: str, index: int) -> int:
    """Returns the index after a class such as `[^]a-z[:digit:]]`. Classes may contain classes."""
    depth = 0
    while index < len(pattern):
        if pattern[index] == "\\":
            index += 1
        elif pattern[index] == "[":
            depth += 1
            index += pattern.startswith("^", index + 1)
            index += pattern.startswith("]", index + 1)  # at the start it is a character of the class
        elif pattern[index] == "]":
            depth -= 1
            if not depth:
                return index + 1
        index += 1
    return len(pattern)


class _Group:
    """An open group. `before`: its branch up to the last part matches the empty text; `last`: the last part does."""

    def __init__(self) -> None:
        self.before, self.last, self.earlier_branch = True, True, False

    def add(self, *, is_empty: bool) -> None:
        self.before, self.last = self.before and self.last, is_empty

    def begin_branch(self) -> None:
        self.earlier_branch = self.is_empty
        self.before, self.last = True, True

    @property
    def is_empty(self) -> bool:
        return self.earlier_branch or (self.before and self.last)


def matches_empty(pattern: str) -> bool:
    """Tells whether an expression matches the empty text as a whole, in one scan of the expression.

    An anchor counts as matching it: llguidance refuses those that depend on the text around them.
    """
    groups = [_Group()]
    previous = ""
    for part in split_pattern(pattern):
        is_lazy = previous == "repeat" and part.text == "?"  # as in `a+?`
        previous = "" if is_lazy else part.kind
        if part.kind == "open":
            groups.append(_Group())
        elif part.kind == "close" and len(groups) > 1:
            is_empty = groups.pop().is_empty
            groups[-1].add(is_empty=is_empty)
        elif part.kind == "branch":
            groups[-1].begin_branch()
        elif is_lazy:
            continue
        elif part.kind == "repeat":
            groups[-1].last |= _is_optional(part.text)
        else:
            groups[-1].add(is_empty=part.kind == "anchor")
    return groups[0].is_empty


def _is_optional(repeat: str) -> bool:
    """Tells whether a repetition such as `*` or `{0,3}` may occur zero times."""
    return repeat in ("*", "?") or (repeat[0] == "{" and not repeat[1:-1].partition(",")[0].strip("0"))


def find_complex_part(pattern: str) -> str:
    """Returns the first part of a Python expression by which `match` could take more than linear time; "" if none.

    Only single characters are repeated, and a literal character that is not one of them follows, so that there is one
    way to match them. Alternatives multiply to at most `MAX_BRANCHES` ways.
    """
    parts = list(split_pattern(pattern))
    ways = 1
    for index, part in enumerate(parts):
        ways *= 2 if part.kind == "branch" else 1
        if ways > MAX_BRANCHES or not _is_plain(part):
            return part.text
        if part.kind == "repeat" and not _has_one_length(parts, index):
            return f"{parts[index - 1].text if index else ''}{part.text}"
    return ""


def _is_plain(part: PatternPart) -> bool:
    """Tells whether Python reads a part as this module does, and as one character, a group or an anchor."""
    text = part.text
    if part.kind == "open":
        return text in ("(", "(?:") or text.startswith("(?P<")
    if text.startswith("\\"):
        return not text[1:].isalnum() or text[1:] in tuple("wWdDsSnrtbBAZ")
    return "[" not in text[1:] and not text.startswith("(?")


def _has_one_length(parts: Sequence[PatternPart], index: int) -> bool:
    """Tells whether the repetition at an index can end at one place only: before a character that it does not match."""
    if index == 0:
        return False
    repeated, index = parts[index - 1], index + 1
    if repeated.kind == "repeat":  # `*?` or `*+`: the repetition before it is checked
        return len(parts[index - 1].text) == 1 and index >= 3 and parts[index - 3].kind == "atom"
    if repeated.kind != "atom":
        return False
    if index < len(parts) and parts[index].kind == "repeat":
        index += 1
    while index < len(parts) and parts[index].kind == "close":
        index += 1
    if index == len(parts):
        return True
    following = parts[index]
    literal = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}.get(following.text, following.text[-1:])
    is_literal = following.kind == "atom" and (
        len(following.text) == 1 or not following.text[1:].isalnum() or literal.isspace()
    )
    is_literal = is_literal and following.text != "." and following.text[0] != "["
    return is_literal and re.fullmatch(repeated.text, literal, re.DOTALL) is None


def escape_slashes(pattern: str) -> str:
    r"""Returns an expression whose slashes are escaped, so that it can stand between slashes: `a/b\/` as `a\/b\\/`."""
    return _SLASH.sub(lambda match: match[0] if match[1] else r"\/", pattern)


def has_end_anchor(pattern: str) -> bool:
    r"""Tells whether an expression ends with an anchor and not with a literal dollar sign such as `\$`."""
    body = pattern.removesuffix("$")
    return body != pattern and (len(body) - len(body.rstrip("\\"))) % 2 == 0
