"""New ids of responses, items, files and batches."""

import secrets


def new_id(prefix: str) -> str:
    """Returns a new id: unguessable, and safe in a URL path."""
    return f"{prefix}_{secrets.token_hex(24)}"
