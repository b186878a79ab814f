"""Limits on what one rendering of a chat template may compute, checked before each operation that can grow.

A single operation of Python, such as the repetition of a text, holds the interpreter's lock until it is done, so no
deadline can interrupt it. Each operation that can produce more than it is given is therefore checked before it runs:
the size of its result is computed from its operands. What the operations cost is counted against a budget of steps.
"""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from typing import Any

from antiphon.harmony.rendered_prompt import RenderError

MAX_RENDERED_CHARS = 16_000_000
"""Maximum characters of a prompt, or of any intermediate value of its rendering."""
MAX_ELEMENTS = 1_000_000
"""Maximum elements of a list, or of all lists inside a value that is written out or compared."""
MAX_INTEGER_BITS = 256
"""Maximum size of an integer. Templates count messages."""
MAX_TEMPLATE_STEPS = 1_000_000
"""Budget of one rendering in steps: a loop iteration, or work on `CHARS_PER_STEP` characters."""
CHARS_PER_STEP = 1_024
"""Together with `MAX_TEMPLATE_STEPS`, this bounds the memory of all texts that a rendering makes: about a gigabyte."""
SLOW_FILTERS = frozenset({"title", "wordcount", "striptags", "pprint", "filesizeformat"})
MAX_SLOW_CHARS = 250_000
"""Maximum size of the input of a slow filter: it takes up to 0.4 microseconds for a character, without a pause."""
SORTING_FILTERS = frozenset({"sort", "groupby", "dictsort", "unique"})
MAX_SORTED_ELEMENTS = 50_000
MAX_DATE_FORMAT_CHARS = 1_000
"""Maximum length of a format of a date. The C library reserves 256 times as much for the result."""
CALL_STEPS = 4
"""Cost of a call of a macro or method."""

_DIGITS = re.compile(r"\d{1,12}")
_steps_left: ContextVar[list[int]] = ContextVar("steps_left")
_WIDTH_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})


def start_budget(steps: int) -> Token[list[int]]:
    """Gives the current rendering a budget. Returns the token for `end_budget`."""
    return _steps_left.set([steps])


def end_budget(token: Token[list[int]]) -> None:
    """Restores the budget of the rendering around this one."""
    _steps_left.reset(token)


def spend_steps(steps: int = 1) -> None:
    """Takes steps from the budget. Raises `RenderError` when it is used up."""
    budget = _steps_left.get(None)
    if budget is None:
        return  # compiling: jinja2 folds constants then
    budget[0] -= steps
    if budget[0] < 0:
        raise RenderError("The model's chat template exceeds the limit on loop iterations and calls.")


def spend_chars(*values: object) -> None:
    """Takes the cost of reading these values from the budget."""
    spend_steps(sum(len(value) for value in values if isinstance(value, str | bytes | list | tuple)) // CHARS_PER_STEP)


def check_chars(count: int) -> None:
    """Raises `RenderError` if a text of `count` characters would be too long."""
    if count > MAX_RENDERED_CHARS:
        raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")


def check_size(value: Any) -> Any:
    """Returns a value. Raises `RenderError` if it is too large."""
    if isinstance(value, str | bytes | list | tuple | dict):
        check_chars(len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise RenderError("The model's chat template computes an integer that is too large.")
    return value


def check_expanded(value: Any) -> Any:
    """Returns a value and counts the cost of reading it. Raises `RenderError` if it is too large to write or compare.

    A list may contain another one several times: after 40 assignments `x = [x, x]` it has a trillion elements in 40
    lists. The count visits each list once.
    """
    if isinstance(value, str):
        spend_chars(value)
    elif isinstance(value, list | tuple | dict) and _count_elements(value, {}) > MAX_RENDERED_CHARS:
        raise RenderError("The model's chat template exceeds the limit on elements of a list.")
    return value


def _count_elements(value: Any, counts: dict[int, int], depth: int = 0) -> int:
    """Returns the number of elements and characters of a value, with those that occur repeatedly."""
    if isinstance(value, str | bytes):
        return len(value) + 1
    if not isinstance(value, list | tuple | dict):
        return 1
    known = counts.get(id(value))
    if known is not None:
        return known
    if depth > 200:
        raise RenderError("The model's chat template nests lists too deeply.")
    spend_steps(1 + len(value) // 64)
    counts[id(value)] = MAX_RENDERED_CHARS  # for a list that contains itself
    children = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    total = 1
    for child in children:
        total += _count_elements(child, counts, depth + 1)
        if total > MAX_RENDERED_CHARS:
            break
    counts[id(value)] = total
    return total


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Raises `RenderError` if `left operator right` would be too large."""
    spend_steps()
    spend_chars(left, right)
    if operator == "*":
        _check_product(left, right)
        _check_product(right, left)
    elif operator == "**":
        _check_power(left, right)
    elif operator == "%" and isinstance(left, str | bytes):
        text = left if isinstance(left, str) else left.decode("latin-1")
        _check_format(text, text.count("%"), right if isinstance(right, tuple) else (right,))


def _check_product(sequence: Any, factor: Any) -> None:
    if isinstance(sequence, str | bytes | list | tuple) and isinstance(factor, int):
        check_chars(len(sequence) * factor)


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_INTEGER_BITS:
        raise RenderError("The model's chat template computes a power that is too large.")


def _check_format(text: str, num_fields: int, values: Iterable[Any]) -> None:
    """Checks `%` and `str.format`: each field may repeat the longest value, or be as wide as a number says."""
    longest = 1
    for value in values:
        check_expanded(value)
        if isinstance(value, int) and not isinstance(value, bool):
            longest = max(longest, abs(value) if num_fields > 1 or abs(value) > MAX_RENDERED_CHARS else len(str(value)))
            if abs(value) > MAX_RENDERED_CHARS and ("*" in text or "{" in text):
                check_chars(abs(value))
        else:
            longest = max(longest, len(value) if isinstance(value, str | bytes) else _count_elements(value, {}) * 8)
    if "*" not in text and ":{" not in text:  # numbers are widths only where a field says so
        longest = max((_text_length(value) for value in values), default=1)
    widths = sum(int(digits) for digits in _DIGITS.findall(text))
    check_chars(len(text) + widths + num_fields * longest)


def _text_length(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return _count_elements(value, {}) * 8 if isinstance(value, list | tuple | dict) else 32


def check_call(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises `RenderError` for the call of a string method that would build too large a value."""
    spend_steps(CALL_STEPS)
    method = getattr(method, "__wrapped__", method)  # the sandbox wraps `format`
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if name == "strftime" and any(len(value) > MAX_DATE_FORMAT_CHARS for value in args if isinstance(value, str)):
        raise RenderError("The model's chat template writes a date in a format that is too long.")
    spend_chars(text, *args)
    if not isinstance(text, str):
        return
    values = (*args, *kwargs.values())
    integers = [abs(value) for value in values if isinstance(value, int)]
    if name in _WIDTH_METHODS:
        check_chars(max(integers, default=0))
    elif name == "expandtabs":
        check_chars(len(text) + text.count("\t") * max(integers, default=8))
    elif name in ("format", "format_map"):
        _check_format(text, text.count("{"), [*values, *_mapped_values(values)])
    elif name == "translate":
        _check_translation(text, values)
    elif name == "join":
        check_join(text, args[0] if args else ())
    elif name == "replace":
        check_replacement(text, args)
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args and isinstance(args[0], str) else None
        check_elements((text.count(separator) if separator else len(text) // 2) + 1)


def _mapped_values(values: Iterable[Any]) -> list[Any]:
    return [inner for value in values if isinstance(value, dict) for inner in value.values()]


def _check_translation(text: str, tables: Iterable[Any]) -> None:
    longest = 1
    for table in tables:
        if isinstance(table, dict):
            longest = max([longest, *(len(value) for value in table.values() if isinstance(value, str))])
    check_chars(len(text) * longest)


def check_elements(count: int) -> None:
    """Raises `RenderError` if a list of `count` elements would be too long."""
    if count > MAX_ELEMENTS:
        raise RenderError("The model's chat template exceeds the limit on elements of a list.")


def check_join(separator: str, values: Any) -> None:
    """Raises `RenderError` if the joined text would be too long."""
    if isinstance(values, str | list | tuple | dict):
        check_elements(len(values))
        parts = sum(_text_length(value) for value in values)
        check_chars(parts + len(separator) * len(values))


def check_replacement(text: str, args: tuple[Any, ...]) -> None:
    """Raises `RenderError` if `text.replace(*args)` would be too long."""
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        check_chars(len(text) + text.count(args[0]) * max(len(args[1]) - len(args[0]), 0))


def check_filter(name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Raises `RenderError` for a filter that would build too large a value."""
    spend_steps()
    spend_chars(value)
    check_expanded(value)
    if any(isinstance(argument, int) and abs(argument) > MAX_ELEMENTS for argument in args):
        raise RenderError("The model's chat template passes a filter a number that is too large.")
    if name in SLOW_FILTERS and _text_length(value) > MAX_SLOW_CHARS:
        raise RenderError(f"The model's chat template passes the filter '{name}' a text that is too long.")
    if name in SORTING_FILTERS and isinstance(value, str | list | tuple | dict) and len(value) > MAX_SORTED_ELEMENTS:
        raise RenderError(f"The model's chat template passes the filter '{name}' too many elements.")
    if name == "replace":
        check_replacement(str(value), args)
    elif name == "join":
        check_join(str(args[0]) if args else "", value)
    elif name == "indent":
        width = args[0] if args else 4
        size = len(width) if isinstance(width, str) else int(width)
        check_chars(len(str(value)) + size * (str(value).count("\n") + 1))
    elif isinstance(value, str) and name in ("list", "sort", "unique", "batch", "slice", "reverse"):
        check_elements(len(value))
