"""What clients keep for the server: sealed, bound to owner and purpose, the same after a restart."""

import base64
import os
from pathlib import Path

import pytest

from antiphon.app.encryption import DecryptionError, KeyFileError, Sealer, open_sealer

TEXT = "They ask for 17·23 — that is 391. ✓"


def test_what_was_sealed_opens_again_and_says_nothing_meanwhile() -> None:
    seals = Sealer()
    sealed = seals.seal("ann", "reasoning", TEXT)
    assert seals.open("ann", "reasoning", sealed) == TEXT
    assert seals.seal("ann", "reasoning", TEXT) != sealed, "equal texts must not be seen to be equal"
    raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    assert b"391" not in raw and "=" not in sealed
    assert seals.open("ann", "reasoning", seals.seal("ann", "reasoning", "")) == ""


@pytest.mark.parametrize(
    ("owner", "purpose"), [("bob", "reasoning"), ("", "reasoning"), ("ann", "compaction")], ids=str
)
def test_nobody_else_and_nothing_else(owner: str, purpose: str) -> None:
    seals = Sealer()
    with pytest.raises(DecryptionError):
        seals.open(owner, purpose, seals.seal("ann", "reasoning", TEXT))  # type: ignore[arg-type]


def test_every_flipped_bit_is_noticed() -> None:
    seals = Sealer()
    raw = base64.urlsafe_b64decode(seals.seal("ann", "reasoning", "ab") + "==="[:2])
    for place in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(DecryptionError):
            seals.open("ann", "reasoning", base64.urlsafe_b64encode(changed).decode())


@pytest.mark.parametrize("sealed", ["", "gAAAAABo", "é", "=", "a", "\x00", "x" * 100_000, "%%%"], ids=ascii)
def test_what_never_was_a_seal(sealed: str) -> None:
    with pytest.raises(DecryptionError):
        Sealer().open("ann", "reasoning", sealed)


def test_another_servers_seal_is_not_ours() -> None:
    with pytest.raises(DecryptionError):
        Sealer().open("ann", "reasoning", Sealer().seal("ann", "reasoning", TEXT))


def test_a_secret_outlives_its_server_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "responses.db.key"
    sealed = open_sealer(path).seal("ann", "reasoning", TEXT)
    assert open_sealer(path).open("ann", "reasoning", sealed) == TEXT
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no draft is left lying about"


def test_of_two_servers_that_begin_at_once_both_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    link = os.link
    others = []

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        others.append(open_sealer(path))  # the other one is faster
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    mine = open_sealer(path)
    assert others[0].open("ann", "reasoning", mine.seal("ann", "reasoning", TEXT)) == TEXT


def test_a_file_that_holds_something_else_is_not_taken_for_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2")
    with pytest.raises(KeyFileError, match="does not hold 32 bytes"):
        open_sealer(path)
    with pytest.raises(KeyFileError, match="cannot be used"):
        open_sealer(tmp_path)
