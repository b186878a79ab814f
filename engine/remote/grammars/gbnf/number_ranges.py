"""Regular expressions of the numbers between two bounds."""

NO_NUMBER = "[^\\s\\S]"


def number_between(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> str:
    """Returns a regular expression of decimal numbers between two integers, without exponents. Not both are None.

    `above` and `below`: the bound itself is left out. No fraction ends with a zero, because llguidance, which
    checks the output, does not accept that of every range.
    """
    options = []
    if high is None or high > 0 or (high == 0 and not below):
        is_cut = low is not None and low >= 0
        options += _magnitudes(low or 0 if is_cut else 0, high, above=above and is_cut, below=below)
    if low is None or low < 0:
        is_cut = high is not None and high <= 0
        smallest = -high if high is not None and is_cut else 0
        largest = None if low is None else -low
        # Minus zero is left out: not every library takes it for zero.
        options += [
            f"-{each}" for each in _magnitudes(smallest, largest, above=(below and is_cut) or not smallest, below=above)
        ]
    return "|".join(f"({option})" for option in options) or NO_NUMBER


def _magnitudes(low: int, high: int | None, *, above: bool, below: bool) -> list[str]:
    """Returns expressions of the numbers from `low`, which is not negative, to `high`."""
    if high is not None and (low > high or (low == high and (above or below))):
        return []
    options = [str(high)] if high is not None and not below else []
    if above and low != high:
        options.append(rf"{low}\.[0-9]*[1-9]")
    first = low + above
    if high is None or first < high:
        options.append(rf"({_natural_between(first, None if high is None else high - 1)})(\.[0-9]*[1-9])?")
    return options


def integer_between(low: int | None, high: int | None) -> str:
    """Returns a regular expression of the integers from `low` to `high`; None is unbounded. Not both are None."""
    if low is not None and high is not None and low > high:
        return NO_NUMBER
    options = []
    if low is None or low < 0:
        options.append(
            f"-({_natural_between(max(1, -high) if high is not None else 1, None if low is None else -low)})"
        )
    if high is None or high >= 0:
        options.append(_natural_between(max(0, low or 0), high))
    return "|".join(f"({option})" for option in options)


def _natural_between(low: int, high: int | None) -> str:
    """Returns an expression of the numbers from `low`, which is not negative."""
    digits = len(str(low))
    if high is None:
        return f"{_same_length(str(low), '9' * digits)}|[1-9][0-9]{{{digits},}}"
    options = []
    while len(str(high)) > digits:
        options.append(_same_length(str(low), "9" * digits))
        low, digits = 10**digits, digits + 1
    return "|".join([*options, _same_length(str(low), str(high))])


def _same_length(low: str, high: str) -> str:
    """Returns an expression of the numbers between two of the same length."""
    if not low:
        return ""
    if low[0] == high[0]:
        return f"{low[0]}({_same_length(low[1:], high[1:])})"
    rest = len(low) - 1
    options = [f"{low[0]}({_same_length(low[1:], '9' * rest)})", f"{high[0]}({_same_length('0' * rest, high[1:])})"]
    if int(high[0]) - int(low[0]) > 1:
        options.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{rest}}}")
    return f"({'|'.join(options)})"
