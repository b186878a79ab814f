"""Content that clients store for the server: sealed, bound to owner and purpose, and readable after a restart."""

import base64
import os
from pathlib import Path

import pytest

from antiphon.app.turn_types.encryption import SEAL_KEY_BYTES, DecryptionError, KeyFileError, Sealer, open_sealer

PLAINTEXT = "They ask for 17·23 — that is 391. ✓"


def test_sealed_text_opens_again_and_reveals_nothing() -> None:
    sealer = Sealer()
    sealed = sealer.seal("ann", "reasoning", PLAINTEXT, "a")
    assert sealer.open("ann", "reasoning", sealed) == PLAINTEXT
    raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    assert b"391" not in raw and "=" not in sealed
    assert sealer.open("ann", "reasoning", sealer.seal("ann", "reasoning", "", "a")) == ""


def test_text_has_the_same_sealed_form_under_its_label_alone() -> None:
    """A turn that is done again gives the same events, and no two texts are sealed with one nonce."""
    secret = os.urandom(SEAL_KEY_BYTES)
    sealed = Sealer(secret).seal("ann", "reasoning", PLAINTEXT, "a")
    assert Sealer(secret).seal("ann", "reasoning", PLAINTEXT, "a") == sealed
    others = [
        ("bob", "reasoning", PLAINTEXT, "a"),
        ("ann", "compaction", PLAINTEXT, "a"),
        ("ann", "reasoning", PLAINTEXT + ".", "a"),
        ("ann", "reasoning", PLAINTEXT, "b"),
        ("ann", "reasoning", "a" + PLAINTEXT, ""),
    ]
    forms = [sealed, *(Sealer(secret).seal(*each) for each in others)]  # type: ignore[arg-type]  # purposes
    nonces = {base64.urlsafe_b64decode(form + "=" * (-len(form) % 4))[9:21] for form in forms}
    assert len(nonces) == len(forms)


@pytest.mark.parametrize(
    ("owner", "purpose"), [("bob", "reasoning"), ("", "reasoning"), ("ann", "compaction")], ids=str
)
def test_other_owner_or_purpose_cannot_open(owner: str, purpose: str) -> None:
    sealer = Sealer()
    with pytest.raises(DecryptionError):
        sealer.open(owner, purpose, sealer.seal("ann", "reasoning", PLAINTEXT, "a"))  # type: ignore[arg-type]


def test_every_flipped_bit_is_detected() -> None:
    sealer = Sealer()
    raw = base64.urlsafe_b64decode(sealer.seal("ann", "reasoning", "ab", "a") + "==="[:2])
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionError):
            sealer.open("ann", "reasoning", base64.urlsafe_b64encode(changed).decode())


@pytest.mark.parametrize("sealed", ["", "gAAAAABo", "é", "=", "a", "\x00", "x" * 100_000, "%%%"], ids=ascii)
def test_invalid_sealed_text_is_rejected(sealed: str) -> None:
    with pytest.raises(DecryptionError):
        Sealer().open("ann", "reasoning", sealed)


def test_text_sealed_with_another_key_is_rejected() -> None:
    with pytest.raises(DecryptionError):
        Sealer().open("ann", "reasoning", Sealer().seal("ann", "reasoning", PLAINTEXT, "a"))


def test_derived_key_depends_on_the_secret_and_opens_no_text() -> None:
    secret = b"s" * SEAL_KEY_BYTES
    key = Sealer(secret).derive_key("approvals")
    assert key == Sealer(secret).derive_key("approvals") != Sealer().derive_key("approvals")
    assert len(key) == SEAL_KEY_BYTES and key != secret
    with pytest.raises(DecryptionError):
        Sealer(key).open("ann", "reasoning", Sealer(secret).seal("ann", "reasoning", PLAINTEXT, "a"))


def test_key_file_is_reused_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "responses.db.key"
    sealed = open_sealer(path).seal("ann", "reasoning", PLAINTEXT, "a")
    assert open_sealer(path).open("ann", "reasoning", sealed) == PLAINTEXT
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the temporary file is removed"


def test_servers_that_start_at_once_use_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    link = os.link
    faster = []

    def link_late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        faster.append(open_sealer(path))
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    slower = open_sealer(path)
    assert faster[0].open("ann", "reasoning", slower.seal("ann", "reasoning", PLAINTEXT, "a")) == PLAINTEXT


def test_file_that_is_no_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2")
    with pytest.raises(KeyFileError, match="size is not 32 bytes"):
        open_sealer(path)
    with pytest.raises(KeyFileError, match="cannot be used"):
        open_sealer(tmp_path)
