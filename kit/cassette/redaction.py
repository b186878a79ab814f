"""Removes secrets before an exchange is written.

Secrets are found by their places: headers, parameters of the query and keys of JSON bodies that are named like a key,
a token or a password. Others are found by their form, see `secret_shapes`. Where a value of at least
`MIN_SECRET_LENGTH` characters occurs elsewhere, in this exchange or a later one, it is removed as well. A shorter one
is removed only in its place: "none" as a key must not destroy the text.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from antiphon.kit.cassette.secret_shapes import redact_shapes
from antiphon.kit.cassette.toml_text import encode_json

REDACTED = "REDACTED"
MIN_SECRET_LENGTH = 8

SECRET_HEADER = re.compile(
    r"(?i)authorization|cookie|api[-_]?key|token|secret|password|credential|session-key|signature|^x-amz-security"
    r"|organi[sz]ation|^openai-project|^x-goog-user-project|subscription|account"
)
"""Names of headers with secrets, or with the name of an account.

The headers that count tokens, such as x-ratelimit-limit-tokens, are plural.
"""
_COUNTED_TOKENS = re.compile(r"(?i)tokens")
SECRET_KEY = re.compile(
    r"(?i)^(.*[-_])?(api[-_]?key|authorization|password|passwd|passphrase|secret|secret[-_]?key|client[-_]?secret|"
    r"private[-_]?key|access[-_]?key|credentials?|cookie|(access|auth|bearer|id|refresh|session|security)[-_]?token|token)$"
)
"""Keys of JSON objects with secrets. `token` beside `logprob` is text of the model."""
_SECRET_HINTS = (b"key", b"auth", b"passw", b"passphrase", b"secret", b"credential", b"cookie", b'token"')
"""A document has none of `SECRET_KEY` without one of these in lower case. One expression for all takes eight times as
long (56 ms for 0.9 MB), and keeps all threads of a server waiting meanwhile."""
SECRET_PARAMETERS = ("key", "sig", "signature", "code")


class Redactor:
    """Knows the secrets of all exchanges so far."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        for secret in secrets:
            self._add_secret(secret)

    def redact_headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the headers without their secrets, which are remembered. The scheme of Authorization is a part."""
        redacted = []
        for name, value in headers:
            is_secret = bool(SECRET_HEADER.search(name)) and not _COUNTED_TOKENS.search(name)
            if is_secret:
                self._add_header_secrets(value)
            redacted.append((name, REDACTED if is_secret else value))
        return redacted

    def redact_path(self, path: str) -> str:
        """Returns path and query without the values of secret parameters."""
        parts = urlsplit(path)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        secret_names = {name for name, _ in pairs if is_secret_key(name) or name.lower() in SECRET_PARAMETERS}
        if not secret_names:
            return path
        for name, value in pairs:
            if name in secret_names:
                self._add_secret(value)
        query = urlencode([(name, REDACTED if name in secret_names else value) for name, value in pairs])
        return parts._replace(query=query).geturl()

    def redact_json(self, body: bytes) -> bytes:
        """Returns a JSON document without the values of secret keys; the same bytes if it has none."""
        lowered = body.lower()
        if not any(hint in lowered for hint in _SECRET_HINTS):
            return body
        try:
            value = json.loads(body)
        except ValueError:
            return body
        found: list[str] = []
        redacted = _redact_value(value, found)
        for secret in found:
            self._add_secret(secret)
        return encode_json(redacted) if found else body

    def redact_text(self, text: str) -> str:
        """Returns the text without the values of known secrets."""
        return self.redact_bytes(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def redact_bytes(self, data: bytes) -> bytes:
        """Returns the bytes without secrets: those of a known form, and known values, plain, in JSON, or in a URL."""
        data, found = redact_shapes(data, REDACTED.encode())
        for secret in found:
            self._add_secret(secret.decode(errors="surrogateescape"))
        for known in sorted(self._secrets, key=len, reverse=True):
            for form in _list_forms(known):
                data = data.replace(form, REDACTED.encode())
        return data

    def _add_header_secrets(self, value: str) -> None:
        """Remembers a header's value, its words, the values of cookies, and what Basic authentication encodes."""
        self._add_secret(value)
        for part in re.split(r"[;,]?\s+|[;,]", value):
            self._add_secret(part)
            self._add_secret(part.partition("=")[2])
        scheme, _, encoded = value.partition(" ")
        if scheme.lower() == "basic":
            try:
                decoded = base64.b64decode(encoded).decode()
            except (binascii.Error, UnicodeDecodeError):
                return
            self._add_secret(decoded)
            self._add_secret(decoded.partition(":")[2])

    def _add_secret(self, value: str) -> None:
        if len(value) >= MIN_SECRET_LENGTH and value != REDACTED:
            self._secrets.add(value)


def is_secret_key(key: str) -> bool:
    """Returns whether a key of a JSON object, or a parameter, is named like one of a secret."""
    return bool(SECRET_KEY.search(key))


def _redact_value(value: Any, found: list[str]) -> Any:
    """Returns a JSON value without the secrets in it, which are added to `found`."""
    if isinstance(value, list):
        return [_redact_value(each, found) for each in value]
    if not isinstance(value, dict):
        return value
    redacted = {}
    for key, each in value.items():
        is_secret = is_secret_key(key) and not (key == "token" and "logprob" in value)
        texts = each if isinstance(each, list) else [each]
        if is_secret and texts and all(isinstance(text, str) for text in texts):
            found += texts
            redacted[key] = [REDACTED] * len(each) if isinstance(each, list) else REDACTED
        else:
            redacted[key] = _redact_value(each, found)
    return redacted


def _list_forms(secret: str) -> Iterator[bytes]:
    forms = [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")]
    for form in dict.fromkeys(forms):
        yield form.encode(errors="surrogateescape")
