"""Ids of approval requests, which authenticate what was asked: the server keeps no copy of the request.

An id is `mcpr_` with the nonce (32 hexadecimal digits), the time in seconds (10) and the MAC (32). The MAC covers the
owner, the label of the MCP server, the name of the tool, its arguments, the nonce and the time. So a client can send
an id back in any later request, and can approve neither another call nor one of another owner. An id does not tell
whether it was used before: `ResponseStore.use_approvals` does, by the nonce.
"""

import hashlib
import hmac
import re

from antiphon.app.errors import clip_text
from antiphon.app.turn_types.tool_rules import MAX_APPROVAL_AGE_S

NONCE_HEX_DIGITS = 32
"""128 bits: no two requests have the same nonce."""
_MAC_BYTES = 16
_ID = re.compile(rf"mcpr_(?P<nonce>[0-9a-f]{{{NONCE_HEX_DIGITS}}})(?P<time>[0-9a-f]{{10}})(?P<mac>[0-9a-f]{{32}})")
_NONCE = re.compile(rf"[0-9a-f]{{{NONCE_HEX_DIGITS}}}")


class ApprovalError(ValueError):
    """An id that this server did not give to this owner for this call, or too long ago."""


class ApprovalSigner:
    """Signs and verifies ids with a secret of at most 64 bytes, which must serve no other purpose."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def create_id(self, owner: str, label: str, name: str, arguments: str, nonce: str, *, now: float) -> str:
        """Returns the id of a request to approve a call. `nonce` is a new random one in lower-case hexadecimal."""
        if _NONCE.fullmatch(nonce) is None:
            raise ValueError(f"a nonce has {NONCE_HEX_DIGITS} lower-case hexadecimal digits")
        time = f"{int(now):010x}"
        return f"mcpr_{nonce}{time}{self._compute_mac(owner, label, name, arguments, nonce, time)}"

    def verify(self, owner: str, id: str, label: str, name: str, arguments: str, *, now: float) -> str:  # noqa: A002  # the API's name
        """Returns the nonce of an id that was created for exactly this call. Raises `ApprovalError` for all others."""
        found = _ID.fullmatch(id)
        if found is None:
            raise ApprovalError(clip_text(id))
        nonce, time = found["nonce"], found["time"]
        mac = self._compute_mac(owner, label, name, arguments, nonce, time)
        if not hmac.compare_digest(mac, found["mac"]) or now - int(time, 16) > MAX_APPROVAL_AGE_S:
            raise ApprovalError(clip_text(id))
        return nonce

    def _compute_mac(self, *fields: str) -> str:
        mac = hashlib.blake2b(key=self._secret, digest_size=_MAC_BYTES, person=b"mcp approval")
        for field in fields:
            data = field.encode("utf-8", "surrogatepass")
            mac.update(len(data).to_bytes(8, "big"))
            mac.update(data)
        return mac.hexdigest()
