"""Headers of gpt-oss messages, as models write them.

    ROLE [to=TOOL] <|channel|>CHANNEL [to=TOOL] [<|constrain|>TYPE] <|message|>

A header counts as far as it reads like one. Words in it that mean nothing are passed over, unless there are so many
that they must be a body whose `<|message|>` is missing. What bodies mean is not known here.
"""

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE, MarkerAlphabet

_MAX_HEADER_WORDS_CHARS = 40
HeaderStart = Literal["given", "missing", "started"]
"""Where a header begins: behind the role that the prompt gave, behind an end without a new start, behind a start."""
_ROLE_PATTERNS: dict[HeaderStart, str] = {"given": "", "missing": "(?:assistant)?", "started": r"[\w.-]{0,64}"}
# What may still become a header although nothing of one is there yet.
_ASSISTANT_PREFIX = "(?:a(?:s(?:s(?:i(?:s(?:t(?:a(?:n(?:t)?)?)?)?)?)?)?)?)?"
_POSSIBLE_PREFIXES: dict[HeaderStart, re.Pattern[str]] = {
    "given": re.compile(r"\s*(?:t|to|to=)?"),
    "missing": re.compile(rf"\s*(?:{_ASSISTANT_PREFIX}|(?:assistant)?\s*(?:t|to|to=)?)"),
}


class MessageHeader(Struct, frozen=True):
    """What a header says, and how many characters its role and the whole of it take."""

    channel: str = ""
    recipient: str = ""
    role_length: int = 0
    length: int = 0
    has_message_marker: bool = False
    """`<|message|>` follows. Else its body, if any, begins without it."""


class HeaderParser:
    """How headers look in the text of one alphabet."""

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        channel, constrain = alphabet.tape_text("<|channel|>"), alphabet.tape_text("<|constrain|>")
        self._message = alphabet.tape_text("<|message|>")
        self._ahead = re.compile(rf"(?:[^{CONTROL_RANGE}]|[{channel}{constrain}])*")
        to, kind = r"to=(?P<{}>[\w.:/-]+)", rf"\s*{constrain}\s*\w*"
        rest = (
            rf"(?P<rest>(?:\s*{to.format('before')})?(?:{kind})?"
            rf"(?:\s*{channel}\s*(?P<channel>analysis|commentary|final|\w*))?"
            rf"(?:\s*{to.format('after')})?(?:{kind}|\s*(?:json|code|text)\b)?)"
        )
        self._heads = {role: re.compile(rf"(?P<role>\s*{pattern}){rest}") for role, pattern in _ROLE_PATTERNS.items()}

    def header_text(self, text: str, at: int) -> str:
        """The text from a place to the next control token that cannot stand in a header."""
        found = self._ahead.match(text, at)
        return found.group() if found else ""

    def classify(self, text: str, following: str | None, role: HeaderStart) -> MessageHeader | None:
        """The header at the beginning of a text; None if more text has to come before that is settled.

        `following` is the control token after the text, "" for the end of the answer, None while that is not known.
        """
        header = self._match_header(text, role)
        words = text[header.length :].lstrip()
        if header.length or role == "started":
            named, worded = True, len(words) > _MAX_HEADER_WORDS_CHARS or "\n" in words
        else:
            named, worded = text.strip() in {"", "assistant"}, not _POSSIBLE_PREFIXES[role].fullmatch(text)
        if worded:
            return header
        if following is None:
            return None
        if following == self._message and named:
            return replace(header, length=len(text), has_message_marker=True)
        return header if words else replace(header, length=len(text))

    def _match_header(self, text: str, role: HeaderStart) -> MessageHeader:
        found = self._heads[role].match(text)
        assert found is not None  # every part of the pattern may be missing
        if not found["rest"] and role != "started":
            return MessageHeader()
        recipient = found["before"] or found["after"] or ""
        return MessageHeader(found["channel"] or "", recipient, found.end("role"), found.end())
