"""Derives from one key all that a turn needs of chance: ids, and nonces of requests to approve a call."""

from hashlib import blake2b

DICE_KEY_BYTES = 32
_ID_BYTES = 24
_NONCE_BYTES = 16


class TurnDice:
    """Source of the ids of one turn: the same key gives the same ids, in the same order.

    `key` has `DICE_KEY_BYTES` random bytes. Without it the ids are as hard to guess as random ones.

    Example: `TurnDice(key).new_id("msg")` returns `msg_` and 48 hexadecimal digits.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def new_id(self, prefix: str) -> str:
        """Returns the next id, with this prefix."""
        return f"{prefix}_{self._draw(prefix, _ID_BYTES)}"

    def new_nonce(self) -> str:
        """Returns the next nonce: 32 hexadecimal digits."""
        return self._draw("nonce", _NONCE_BYTES)

    def _draw(self, purpose: str, num_bytes: int) -> str:
        self._count += 1
        return blake2b(f"{purpose} {self._count}".encode(), key=self._key, digest_size=num_bytes).hexdigest()
