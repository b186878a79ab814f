"""The error of a grammar that GBNF cannot say."""


class UntranslatableError(Exception):
    """The message is what GBNF cannot say, such as "a number with bounds"."""
