"""Dice whose ids can be read: numbers in the order in which they are drawn."""

from antiphon.app.turns.core.dice import TurnDice

IDS_OF_A_TURN = 1000
"""Distance of the numbers of two turns."""
_first_numbers: dict[bytes, int] = {}


class NumberedDice(TurnDice):
    """Numbers the ids of a turn, from `first`. Labels of sealed texts and nonces take no number."""

    def __init__(self, key: bytes = b"", first: int = 0) -> None:
        super().__init__(key)
        self._next = first

    def new_id(self, prefix: str) -> str:
        """Returns the prefix with the next number."""
        if prefix == "seal":
            return super().new_id(prefix)
        self._next += 1
        return f"{prefix}_{self._next - 1}"


class NumberedTurns:
    """Creates the dice of the turns of one manager: those of the first begin with 1, those of the next with 1001."""

    def __init__(self) -> None:
        self._num_turns = 0

    def __call__(self, key: bytes) -> NumberedDice:
        """Returns the dice of a new key."""
        _first_numbers[key] = 1 + IDS_OF_A_TURN * self._num_turns
        self._num_turns += 1
        return repeat_dice(key)


def repeat_dice(key: bytes) -> NumberedDice:
    """Returns the dice of a key again."""
    return NumberedDice(key, _first_numbers.get(key, 1))
