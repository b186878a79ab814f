"""What an exception says, short enough for a line of a log."""


def first_line(failure: Exception) -> str:
    """Its kind, and the first line of its message."""
    return f"{type(failure).__name__}: {failure}".splitlines()[0]
