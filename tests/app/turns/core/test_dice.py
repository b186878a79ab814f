"""The dice of a turn: all that it needs of chance follows from its key."""

import re

from antiphon.app.tools.approvals import ApprovalSigner
from antiphon.app.turns.core.dice import DICE_KEY_BYTES, TurnDice

KEY = bytes(range(DICE_KEY_BYTES))


def draw(key: bytes) -> list[str]:
    dice = TurnDice(key)
    return [dice.new_id("msg"), dice.new_id("msg"), dice.new_nonce(), dice.new_id("call"), dice.new_nonce()]


def test_key_decides_all_that_is_drawn() -> None:
    assert draw(KEY) == draw(KEY)
    assert not set(draw(KEY)) & set(draw(KEY[::-1]))


def test_all_that_is_drawn_differs() -> None:
    dice = TurnDice(KEY)
    drawn = [dice.new_id(prefix).partition("_")[2] for prefix in ("msg", "rs", "call") * 1000]
    assert len({*drawn}) == len(drawn)
    assert all(re.fullmatch("[0-9a-f]{48}", each) for each in drawn)


def test_nonce_is_one_that_an_approval_takes() -> None:
    signer, nonce = ApprovalSigner(b"secret"), TurnDice(KEY).new_nonce()
    assert signer.verify("ann", signer.create_id("ann", "a", "b", "{}", nonce, now=1), "a", "b", "{}", now=1) == nonce
