"""Streams of one turn at two times, made comparable byte for byte."""

import re

NEW_ID = re.compile(
    r"\b[a-z]+_[0-9a-f]{48}\b|(?:chat)?cmpl-[0-9a-f]{48}|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
"""Ids of this server, and the ids that clients choose for their sessions."""
TIME = re.compile(r'"(created|created_at|completed_at)":\d+')
ENCRYPTED = re.compile(r'"encrypted_content":"[^"]*"')


def normalize_stream(stream: bytes) -> str:
    """Returns a stream with its ids numbered in their order, without times and encrypted content."""
    numbers: dict[str, str] = {}

    def number_id(match: re.Match[str]) -> str:
        return numbers.setdefault(
            match[0], f"{re.split('[_-]', match[0])[0] if '_' in match[0] else ''}_{len(numbers)}"
        )

    text = NEW_ID.sub(number_id, stream.decode())
    return ENCRYPTED.sub('"encrypted_content":"…"', TIME.sub(r'"\1":0', text))
