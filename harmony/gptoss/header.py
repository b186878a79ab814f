"""Parser for the headers of gpt-oss messages, as models write them.

    ROLE [to=TOOL] <|channel|>CHANNEL [to=TOOL] [<|constrain|>TYPE] <|message|>

A header extends as far as the text matches this pattern. Unknown words after it are skipped, unless they are so long
that they must be a body whose `<|message|>` is missing. This module does not know what a body means.
"""

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE, MarkerAlphabet

_MAX_HEADER_WORDS_CHARS = 40
HeaderStart = Literal["given", "missing", "started"]
"""The text before a header: the role that ends the prompt, an end token without a new start, or a start token."""
_ROLE_PATTERNS: dict[HeaderStart, str] = {"given": "", "missing": "(?:assistant)?", "started": r"[\w.-]{0,64}"}
# Text that may still become a header although no part of one has matched.
_ASSISTANT_PREFIX = "(?:a(?:s(?:s(?:i(?:s(?:t(?:a(?:n(?:t)?)?)?)?)?)?)?)?)?"
_POSSIBLE_PREFIXES: dict[HeaderStart, re.Pattern[str]] = {
    "given": re.compile(r"\s*(?:t|to|to=)?"),
    "missing": re.compile(rf"\s*(?:{_ASSISTANT_PREFIX}|(?:assistant\s*)?(?:t|to|to=)?)"),
}


class MessageHeader(Struct, frozen=True):
    """A parsed header, with the number of characters of its role and of all of it."""

    channel: str = ""
    recipient: str = ""
    role_length: int = 0
    length: int = 0
    has_message_marker: bool = False
    """True if `<|message|>` follows the header. Otherwise the body, if any, begins without it."""


class HeaderParser:
    """Parses headers in the text of one alphabet."""

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        channel, constrain = alphabet.tape_text("<|channel|>"), alphabet.tape_text("<|constrain|>")
        self._message = alphabet.tape_text("<|message|>")
        self._ahead = re.compile(rf"(?:[^{CONTROL_RANGE}]|[{channel}{constrain}])*")
        to, kind = r"to=(?P<{}>[\w.:/-]+)", rf"\s*{constrain}\s*\w*"
        fields_pattern = (
            rf"(?P<rest>(?:\s*{to.format('before')})?(?:{kind})?"
            rf"(?:\s*{channel}\s*(?P<channel>analysis|commentary|final|\w*))?"
            rf"(?:\s*{to.format('after')})?(?:{kind}|\s*(?:json|code|text)\b)?)"
        )
        self._heads = {
            role: re.compile(rf"(?P<role>\s*{pattern}){fields_pattern}") for role, pattern in _ROLE_PATTERNS.items()
        }

    def header_text(self, text: str, at: int) -> str:
        """Returns the text from index `at` to the next control token that cannot be part of a header."""
        match = self._ahead.match(text, at)
        return match.group() if match else ""

    def classify(self, text: str, following: str | None, role: HeaderStart) -> MessageHeader | None:
        """Returns the header at the start of a text, or None if more text is needed to decide.

        `following` is the control token after the text, "" at the end of the answer, or None if it is not known yet.
        """
        header = self._match_header(text, role)
        extra_text = text[header.length :].lstrip()
        if header.length or role == "started":
            is_header, is_body = True, len(extra_text) > _MAX_HEADER_WORDS_CHARS or "\n" in extra_text
        else:
            is_header, is_body = text.strip() in {"", "assistant"}, not _POSSIBLE_PREFIXES[role].fullmatch(text)
        if is_body:
            return header
        if following is None:
            return None
        if following == self._message and is_header:
            return replace(header, length=len(text), has_message_marker=True)
        return header if extra_text else replace(header, length=len(text))

    def _match_header(self, text: str, role: HeaderStart) -> MessageHeader:
        match = self._heads[role].match(text)
        assert match is not None  # every part of the pattern is optional
        if not match["rest"] and role != "started":
            return MessageHeader()
        recipient = match["before"] or match["after"] or ""
        return MessageHeader(match["channel"] or "", recipient, match.end("role"), match.end())
