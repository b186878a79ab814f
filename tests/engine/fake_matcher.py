"""A fake grammar matcher, for tests of the sampler."""

from typing import Any


class FakeMatcher:
    """A grammar matcher whose masks a function returns."""

    def __init__(self, next_mask: Any) -> None:
        self.next_mask = next_mask

    def advance(self, token: int) -> None:
        pass
