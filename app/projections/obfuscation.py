"""Padding: who sees only the lengths of the pieces of a stream is not to learn from them what is said."""

import secrets

BUCKET = 32
_KEY = b',"obfuscation":"'


def padded(data: bytes) -> bytes:
    """A JSON object with a random `obfuscation` behind its keys, so that its length is a multiple of `BUCKET`."""
    missing = -(len(data) + len(_KEY) + 1) % BUCKET
    noise = secrets.token_urlsafe(BUCKET)[:missing].encode()
    return b'%b%b%b"}' % (data[:-1], _KEY, noise)
