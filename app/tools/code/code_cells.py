"""A cell of Python code whose last value is printed, as a notebook does it, and the traceback of such a cell.

The server does not parse the code of a model: CPython's parser can end the process on hostile code. The lines that are
tried come from the text alone, and the interpreter in the sandbox decides which of them is Python: it runs nothing of
a cell with a syntax error.
"""

from collections.abc import Iterator
from itertools import islice

_VALUE_HEAD = "pass;_ = ("
"""Stands before the last expression. The statement before it makes a syntax error of it inside brackets, where
"_ = (" alone could be a keyword argument. Inside a string, the brackets do not match. It adds no line."""
_VALUE_TAIL = "\n)\nif _ is not None: print(repr(_))"
_NO_VALUE = "\nNone"
"""Ends every cell, so that no value of the sandbox is converted to an object of this process."""
_NOT_FIRST_CHARACTERS = frozenset(" \t#)]}")
"""A line that begins with one of these does not begin a statement."""
_MAX_STARTS = 4
"""Lines that are tried, from the last one up. Lines inside an expression may look like its first one."""


def list_cells(code: str) -> Iterator[str]:
    """Yields variants of a cell, the one to prefer first. Each is to be tried if those before it are syntax errors.

    The last one is the cell itself, without a print of its last value.

        x = 2          x = 2
        x * 3          pass;_ = (x * 3
                       )
                       if _ is not None: print(repr(_))
                       None
    """
    code = code.replace("\r\n", "\n").rstrip()
    for start in islice(_find_statements(code), _MAX_STARTS):
        yield _print_value(code, start)
        semicolon = code.rfind(";", start)
        if semicolon != -1 and code[semicolon + 1 :].strip():
            yield _print_value(code, semicolon + 1)
    yield code + _NO_VALUE


def _print_value(code: str, start: int) -> str:
    expression = code[start:].lstrip(" ")
    return f"{code[:start]}{_VALUE_HEAD}{expression}{_VALUE_TAIL}{_NO_VALUE}"


def _find_statements(code: str) -> Iterator[int]:
    """Yields the offsets of lines that may begin a statement, the last one first."""
    end = len(code)
    while end > 0:
        start = code.rfind("\n", 0, end) + 1
        if start < end and code[start] not in _NOT_FIRST_CHARACTERS:
            yield start
        end = start - 1


def is_parse_error(traceback: str) -> bool:
    """Tells whether the traceback of a syntax error is that of the cell: then nothing of the cell has run.

    Otherwise it is that of code that the cell passed to "eval", and its first place is "in <module>".
    """
    place = traceback.split("\n", 2)[1:2]
    return bool(place) and ", in " not in place[0]


def clean_traceback(traceback: str) -> str:
    """Returns a traceback without the text that stands before the last expression of the cell."""
    lines = traceback.split("\n")
    for index, line in enumerate(lines):
        before, head, after = line.partition(_VALUE_HEAD)
        if not head:
            continue
        lines[index] = before + after
        if index + 1 < len(lines) and not lines[index + 1].strip(" ~^"):
            lines[index + 1] = lines[index + 1].replace(" " * len(_VALUE_HEAD), "", 1)
    return "\n".join(lines)
