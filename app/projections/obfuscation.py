"""Padding: who sees only the lengths of the pieces of a stream is not to learn from them what is said."""

import secrets

BUCKET_BYTES = 32
_KEY = b',"obfuscation":"'


def add_obfuscation(data: bytes) -> bytes:
    """A JSON object with a random `obfuscation` behind its keys, so that its length is a multiple of `BUCKET`."""
    missing = -(len(data) + len(_KEY) + 1) % BUCKET_BYTES
    noise = secrets.token_urlsafe(BUCKET_BYTES)[:missing].encode()
    return b'%b%b%b"}' % (data[:-1], _KEY, noise)
