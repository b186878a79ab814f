"""Padding of stream chunks, so that an eavesdropper cannot infer the text from their lengths."""

import secrets

BUCKET_BYTES = 32
_KEY = b',"obfuscation":"'


def add_obfuscation(data: bytes) -> bytes:
    """Appends a random `obfuscation` to a JSON object, so that its length is a multiple of `BUCKET_BYTES`."""
    padding_length = -(len(data) + len(_KEY) + 1) % BUCKET_BYTES
    padding = secrets.token_urlsafe(BUCKET_BYTES)[:padding_length].encode()
    return b'%b%b%b"}' % (data[:-1], _KEY, padding)
