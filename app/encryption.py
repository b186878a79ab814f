"""What a client keeps for this server: reasoning and summaries, sealed so that nobody else can read or change them.

AES-256-GCM under a key for each owner, drawn from the server's secret by HKDF; what the text is for is bound to it.
A seal is `base64url(version 1 byte, secret's id 8, nonce 12, ciphertext and tag)`. Whatever is wrong with one (another
server's, another owner's, another purpose, a flipped bit), the answer is the same: it could not be verified.
"""

import base64
import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Purpose = Literal["reasoning", "compaction"]
KEY_BYTES = 32
_VERSION = b"\x01"
_ID, _NONCE = 8, 12


class DecryptionError(ValueError):
    """Not sealed by this server, for this owner and purpose."""


class KeyFileError(Exception):
    """The file of the secret cannot be used; the message is one line for a person."""


class Sealer:
    """Seals and opens. Without a secret it makes one, and its seals end with the process."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(KEY_BYTES) if secret is None else secret
        self._id = hashlib.sha256(b"antiphon secret id" + self._secret).digest()[:_ID]

    def seal(self, owner: str, purpose: Purpose, text: str) -> str:
        """The text, for this owner to keep."""
        head = _VERSION + self._id + secrets.token_bytes(_NONCE)
        sealed = self._cipher_for(owner).encrypt(head[-_NONCE:], text.encode(), head + purpose.encode())
        return base64.urlsafe_b64encode(head + sealed).decode().rstrip("=")

    def open(self, owner: str, purpose: Purpose, sealed: str) -> str:
        """The text again. Raises `SealError`."""
        try:
            raw = base64.urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
            head, rest = raw[: 1 + _ID + _NONCE], raw[1 + _ID + _NONCE :]
            if head[: 1 + _ID] != _VERSION + self._id:
                raise DecryptionError(purpose)
            return self._cipher_for(owner).decrypt(head[-_NONCE:], rest, head + purpose.encode()).decode()
        except (ValueError, InvalidTag) as error:
            raise DecryptionError(purpose) from error

    def _cipher_for(self, owner: str) -> AESGCM:
        info = b"antiphon seals " + owner.encode()
        return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._secret))


def open_sealer(path: Path | None) -> Sealer:
    """Seals under the secret in a file, which is made where there is none. Raises `SecretError`."""
    if path is None:
        return Sealer()
    try:
        return Sealer(_read_or_create_key(path))
    except OSError as error:
        raise KeyFileError(f"the secret in {path} cannot be used: {error.strerror or error}") from None


def _read_or_create_key(path: Path) -> bytes:
    """The secret in a file that only its owner may read.

    Several servers may begin at once: whoever names the file first has made the secret, and all others take that one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                os.fsync(file.fileno())
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
    secret = path.read_bytes()
    if len(secret) != KEY_BYTES:
        raise OSError(f"it does not hold {KEY_BYTES} bytes")
    return secret
