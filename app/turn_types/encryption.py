"""Encrypts reasoning and summaries that the client keeps for this server; only this server can read or change them.

AES-256-GCM with one key per owner, derived from the server's secret with HKDF; the purpose of the text is bound to it.
A sealed text is `base64url(version 1 byte, secret id 8, nonce 12, ciphertext and tag)`. The nonce is a keyed hash of
the text, its owner, purpose and label, so that a turn which is done again gives the same sealed text, and no two texts
have one nonce. A text that cannot be verified
always raises the same error, whether it belongs to another server, owner or purpose or has a flipped bit.
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

from antiphon.app.turn_types.turn_rules import Purpose

KeyPurpose = Literal["approvals", "image names", "prefix cache"]
SEAL_KEY_BYTES = 32
_SEALED_VERSION = b"\x01"
_ID, _NONCE = 8, 12


class DecryptionError(ValueError):
    """The text was not sealed by this server for this owner and purpose."""


class KeyFileError(Exception):
    """The key file cannot be used; the message is one line for the operator."""


class Sealer:
    """Seals and opens texts. Without a secret it generates one, so that a restart makes its sealed texts unreadable."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(SEAL_KEY_BYTES) if secret is None else secret
        self._id = hashlib.sha256(b"antiphon secret id" + self._secret).digest()[:_ID]

    @property
    def key_id(self) -> str:
        """Identifies the secret without revealing it."""
        return self._id.hex()

    def seal(self, owner: str, purpose: Purpose, text: str, label: str) -> str:
        """Returns the text encrypted for this owner and purpose. The same text has the same form under one label."""
        cipher_key, nonce_key = self._derive_keys(owner)
        data = text.encode()
        nonce = hashlib.blake2b(key=nonce_key, digest_size=_NONCE)
        for part in (purpose.encode(), label.encode(), data):
            nonce.update(len(part).to_bytes(8, "big") + part)
        header = _SEALED_VERSION + self._id + nonce.digest()
        ciphertext = AESGCM(cipher_key).encrypt(header[-_NONCE:], data, header + purpose.encode())
        return base64.urlsafe_b64encode(header + ciphertext).decode().rstrip("=")

    def open(self, owner: str, purpose: Purpose, sealed: str) -> str:
        """Returns the decrypted text. Raises `DecryptionError`."""
        try:
            raw = base64.urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
            header, ciphertext = raw[: 1 + _ID + _NONCE], raw[1 + _ID + _NONCE :]
            if header[: 1 + _ID] != _SEALED_VERSION + self._id:
                raise DecryptionError(purpose)
            cipher_key, _ = self._derive_keys(owner)
            return AESGCM(cipher_key).decrypt(header[-_NONCE:], ciphertext, header + purpose.encode()).decode()
        except (ValueError, InvalidTag) as error:
            raise DecryptionError(purpose) from error

    def derive_key(self, purpose: KeyPurpose) -> bytes:
        """Returns a key of `SEAL_KEY_BYTES` bytes for another purpose, independent of those that seal texts."""
        info = b"antiphon derives " + purpose.encode()
        return HKDF(algorithm=SHA256(), length=SEAL_KEY_BYTES, salt=None, info=info).derive(self._secret)

    def _derive_keys(self, owner: str) -> tuple[bytes, bytes]:
        """Returns the keys of an owner's texts and of their nonces."""
        info = b"antiphon seals " + owner.encode()
        both = HKDF(algorithm=SHA256(), length=2 * SEAL_KEY_BYTES, salt=None, info=info).derive(self._secret)
        return both[:SEAL_KEY_BYTES], both[SEAL_KEY_BYTES:]


def open_sealer(path: Path | None) -> Sealer:
    """Returns a sealer with the secret in the key file, which is created if missing. Raises `KeyFileError`.

    Without a path, the secret is new and exists in memory only.
    """
    if path is None:
        return Sealer()
    try:
        return Sealer(_load_or_create_key(path))
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be used: {error.strerror or error}") from None


def _load_or_create_key(path: Path) -> bytes:
    """Returns the secret from a file that only its owner may read; creates the file if it is missing.

    Several servers may start at the same time: the first to link its draft to `path` provides the secret, and the
    others read that one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SEAL_KEY_BYTES))
                os.fsync(file.fileno())
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
    secret = path.read_bytes()
    if len(secret) != SEAL_KEY_BYTES:
        raise OSError(f"its size is not {SEAL_KEY_BYTES} bytes; choose another --encryption-key-file")
    return secret
