"""Ids of approval requests: each is good for its own call, owner, server and time, and nothing can be forged."""

from typing import Any

import pytest

from antiphon.app.tools.approvals import ApprovalError, ApprovalSigner
from antiphon.app.turn_types.tool_rules import MAX_APPROVAL_AGE_S

SIGNER = ApprovalSigner(b"k" * 32)
NONCE = "0123456789abcdef" * 2
CALL = {"owner": "ann", "label": "files", "name": "delete", "arguments": '{"path":"a"}'}
NOW = 2_000_000_000


def create_id(**changed: Any) -> str:
    return SIGNER.create_id(**{**CALL, "nonce": NONCE, "now": NOW, **changed})


def verify(approval_id: str, signer: ApprovalSigner = SIGNER, **changed: Any) -> str:
    return signer.verify(id=approval_id, **{**CALL, "now": NOW, **changed})


def test_id_gives_its_nonce_back_and_shows_nothing_of_the_call() -> None:
    approval_id = create_id()
    assert verify(approval_id) == NONCE and approval_id.startswith(f"mcpr_{NONCE}")
    assert len(approval_id) == len("mcpr_") + 32 + 10 + 32
    assert verify(approval_id, ApprovalSigner(b"k" * 32)) == NONCE, "as after a restart with the same secret"
    assert create_id() == approval_id != create_id(nonce="f" * 32)


@pytest.mark.parametrize(
    "changed",
    [
        {"owner": "bob"}, {"owner": ""}, {"label": "file"}, {"name": "deletes"}, {"arguments": '{"path": "a"}'},
        {"arguments": ""}, {"owner": "annf", "label": "iles"}, {"label": "filesdelete", "name": ""},
        {"label": "delete", "name": "files"}, {"owner": "ann\0"}, {"name": "delete" + CALL["arguments"], "arguments": ""},
    ],
    ids=str,
)  # fmt: skip
def test_id_is_good_for_no_other_call(changed: dict[str, Any]) -> None:
    with pytest.raises(ApprovalError):
        verify(create_id(), **changed)
    assert verify(create_id(**changed), **changed) == NONCE


def test_every_changed_digit_is_detected() -> None:
    approval_id = create_id()
    for position in range(len(approval_id)):
        for digit in "0f":
            changed = approval_id[:position] + digit + approval_id[position + 1 :]
            if changed != approval_id:
                with pytest.raises(ApprovalError):
                    verify(changed)


@pytest.mark.parametrize(
    "change",
    [
        str.upper, lambda text: text + "\n", lambda text: text + "0", lambda text: text[:-1], lambda text: text[5:],
        lambda text: text.replace("mcpr_", "msg_"), lambda _: "", lambda _: "mcpr_", lambda _: "mcpr_" + "é" * 74,
        lambda _: "mcpr_" + "٣" * 74, lambda _: "x" * 1_000_000,
    ],
)  # fmt: skip
def test_what_is_no_id_is_rejected(change: Any) -> None:
    with pytest.raises(ApprovalError):
        verify(change(create_id()))


def test_id_of_another_secret_is_rejected() -> None:
    with pytest.raises(ApprovalError):
        verify(create_id(), ApprovalSigner(b"j" * 32))


def test_id_expires() -> None:
    assert verify(create_id(), now=NOW + MAX_APPROVAL_AGE_S) == NONCE
    with pytest.raises(ApprovalError):
        verify(create_id(), now=NOW + MAX_APPROVAL_AGE_S + 1)
    assert verify(create_id(now=NOW + 0.9)) == NONCE
    assert verify(create_id(), now=NOW - 60) == NONCE, "clocks of two servers differ"


def test_any_text_can_be_signed() -> None:
    for text in ("", "\ud800", "ü€😀\0", "x" * 100_000):
        assert verify(create_id(arguments=text, name=text), arguments=text, name=text) == NONCE


@pytest.mark.parametrize("nonce", ["", "0" * 31, "0" * 33, "F" * 32, "٣" * 32, "0" * 32 + "\n"], ids=ascii)
def test_nonce_that_is_no_128_bits_in_hexadecimal_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        create_id(nonce=nonce)
