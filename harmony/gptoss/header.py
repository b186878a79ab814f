"""Headers of gpt-oss messages, as models write them.

    ROLE [to=TOOL] <|channel|>CHANNEL [to=TOOL] [<|constrain|>TYPE] <|message|>

A header counts as far as it reads like one. Words in it that mean nothing are passed over, unless there are so many
that they must be a body whose `<|message|>` is missing. What bodies mean is not known here.
"""

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.harmony.tokens.detokenizer import CONTROLS, Alphabet

_PATIENCE = 40
Role = Literal["given", "missing", "started"]
"""Where a header begins: behind the role that the prompt gave, behind an end without a new start, behind a start."""
_ROLES: dict[Role, str] = {"given": "", "missing": "(?:assistant)?", "started": r"[\w.-]{0,64}"}
# What may still become a header although nothing of one is there yet.
_BEGUN = "(?:a(?:s(?:s(?:i(?:s(?:t(?:a(?:n(?:t)?)?)?)?)?)?)?)?)?"
_HOPES: dict[Role, re.Pattern[str]] = {
    "given": re.compile(r"\s*(?:t|to|to=)?"),
    "missing": re.compile(rf"\s*(?:{_BEGUN}|(?:assistant)?\s*(?:t|to|to=)?)"),
}


class Header(Struct, frozen=True):
    """What a header says, and how many characters its role and the whole of it take."""

    channel: str = ""
    recipient: str = ""
    role: int = 0
    size: int = 0
    messaged: bool = False
    """`<|message|>` follows. Else its body, if any, begins without it."""


class Headers:
    """How headers look in the text of one alphabet."""

    def __init__(self, alphabet: Alphabet) -> None:
        channel, constrain = alphabet.spell("<|channel|>"), alphabet.spell("<|constrain|>")
        self._message = alphabet.spell("<|message|>")
        self._ahead = re.compile(rf"(?:[^{CONTROLS}]|[{channel}{constrain}])*")
        to, kind = r"to=(?P<{}>[\w.:/-]+)", rf"\s*{constrain}\s*\w*"
        rest = (
            rf"(?P<rest>(?:\s*{to.format('before')})?(?:{kind})?"
            rf"(?:\s*{channel}\s*(?P<channel>analysis|commentary|final|\w*))?"
            rf"(?:\s*{to.format('after')})?(?:{kind}|\s*(?:json|code|text)\b)?)"
        )
        self._heads = {role: re.compile(rf"(?P<role>\s*{pattern}){rest}") for role, pattern in _ROLES.items()}

    def ahead(self, text: str, at: int) -> str:
        """The text from a place to the next control token that cannot stand in a header."""
        found = self._ahead.match(text, at)
        return found.group() if found else ""

    def judge(self, text: str, following: str | None, role: Role) -> Header | None:
        """The header at the beginning of a text; None if more text has to come before that is settled.

        `following` is the control token after the text, "" for the end of the answer, None while that is not known.
        """
        header = self._read(text, role)
        words = text[header.size :].lstrip()
        if header.size or role == "started":
            named, worded = True, len(words) > _PATIENCE or "\n" in words
        else:
            named, worded = text.strip() in {"", "assistant"}, not _HOPES[role].fullmatch(text)
        if worded:
            return header
        if following is None:
            return None
        if following == self._message and named:
            return replace(header, size=len(text), messaged=True)
        return header if words else replace(header, size=len(text))

    def _read(self, text: str, role: Role) -> Header:
        found = self._heads[role].match(text)
        assert found is not None  # every part of the pattern may be missing
        if not found["rest"] and role != "started":
            return Header()
        recipient = found["before"] or found["after"] or ""
        return Header(found["channel"] or "", recipient, found.end("role"), found.end())
