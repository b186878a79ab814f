"""Secrets that are known by their form, wherever they stand: keys of common services, and passwords in URLs."""

import re

_START = rb"(?<![A-Za-z0-9_-])"
"""Before a key. Text in base64, such as encrypted reasoning, has its beginnings by chance, but only in the middle."""
_SHAPES: tuple[tuple[bytes, bytes], ...] = (
    (b"sk-", rb"sk-[A-Za-z0-9_-]{16,}"),  # OpenAI, Anthropic, DeepSeek, OpenRouter, LiteLLM
    (b"xai-", rb"xai-[A-Za-z0-9]{32,}"),
    (b"gsk_", rb"gsk_[A-Za-z0-9]{32,}"),
    (b"hf_", rb"hf_[A-Za-z0-9]{30,}"),
    (b"AIza", rb"AIza[A-Za-z0-9_-]{35}"),
    (b"AKIA", rb"AKIA[A-Z0-9]{16}"),
    (b"ASIA", rb"ASIA[A-Z0-9]{16}"),
    (b"gh", rb"gh[opusr]_[A-Za-z0-9]{36,}"),
    (b"github_pat_", rb"github_pat_[A-Za-z0-9_]{22,}"),
    (b"glpat-", rb"glpat-[A-Za-z0-9_-]{20,}"),
    (b"npm_", rb"npm_[A-Za-z0-9]{36}"),
    (b"pypi-", rb"pypi-[A-Za-z0-9_-]{50,}"),
    (b"xox", rb"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    (b"k_live_", rb"[rs]k_live_[A-Za-z0-9]{16,}"),
    (b"k_test_", rb"[rs]k_test_[A-Za-z0-9]{16,}"),
    (b"eyJ", rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),  # JSON Web Tokens
    (b"org-", rb"org-[A-Za-z0-9]{16,}"),
    (b"proj_", rb"proj_[A-Za-z0-9]{16,}"),
)
_KEYS = tuple((hint, re.compile(_START + b"(" + shape + b")")) for hint, shape in _SHAPES)
"""Patterns, each with bytes that every match has: they are looked for first, which is much faster."""

_PRIVATE_KEY_TEXT = re.compile(rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----([^-]{1,16384})-----END")
_BEARER = re.compile(rb"(?i:bearer) ([A-Za-z0-9._~+/=-]{16,1024})")
_USER_OF_URL = re.compile(rb":\\{0,2}/\\{0,2}/[^\s/@:\"'<>\\]{0,256}:([^\s/@\"'<>\\]{1,256})@")
_PARAMETER_OF_URL = re.compile(
    rb"[?&](?:(?:[a-z]{1,20}[-_])?(?:api[-_]?key|secret|password|passwd|signature)"
    rb"|(?:(?:access|auth|id|refresh|session|security)[-_]?)?token|key|sig|code)=([^&#\s\"'<>\\]{8,2048})",
    re.IGNORECASE,
)
_PLACES = ((b"-----BEGIN ", _PRIVATE_KEY_TEXT), (b"earer ", _BEARER), (b"@", _USER_OF_URL), (b"=", _PARAMETER_OF_URL))


def redact_shapes(data: bytes, replacement: bytes) -> tuple[bytes, list[bytes]]:
    """Returns a text or a JSON document without its secrets, and these. The time grows with its length, not faster."""
    found: list[bytes] = []

    def replace(match: re.Match[bytes]) -> bytes:
        found.append(match[1])
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match[0][:start] + replacement + match[0][end:]

    for hint, pattern in (*_KEYS, *_PLACES):
        if hint in data:
            data = pattern.sub(replace, data)
    return data, found
