"""Puts a mutant into a process that has imported the module already, by swapping the code of its functions."""

import gc
import sys
from types import CodeType, FunctionType

CodeKey = tuple[str, int]
"""Qualified name and first line. A mutant keeps the number of lines, so both name the same function in both modules."""


class SwapError(Exception):
    """The change takes effect only in a new process: it is outside functions, or changes what one refers to."""


CO_OPTIMIZED = 0x1
"""Flag of the code of functions; modules and classes lack it."""


def swap_code(module_name: str, original: str, changed: str) -> None:
    """Gives the functions of a loaded module the code of `changed`. Raises `SwapError` if that is not enough."""
    file = sys.modules[module_name].__file__
    if file is None:
        raise SwapError(f"{module_name} has no file")
    found = _list_differences(compile(original, file, "exec"), compile(changed, file, "exec"))
    different = dict(found)
    if not different or len(different) < len(found):
        raise SwapError("no function has changed, or two that cannot be told apart")
    swapped = set()
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == file:
            key = _key_of(function.__code__)
            if key in different:
                _set_code(function, different[key])
                swapped.add(key)
    # A function inside another one exists only while that runs. The outer one makes it of its own new code.
    if not {key for key in different if "<locals>" not in key[0]} <= swapped:
        raise SwapError("a function that has changed is not alive")


def _list_differences(old: CodeType, new: CodeType) -> list[tuple[CodeKey, CodeType]]:
    """Returns the functions that have changed, with their new code. Raises `SwapError` for a change outside of them."""
    result: list[tuple[CodeKey, CodeType]] = []
    nested = _list_nested(old), _list_nested(new)
    if len(nested[0]) != len(nested[1]):
        raise SwapError("the change adds or removes a function")
    for old_part, new_part in zip(*nested, strict=True):
        if old_part != new_part:
            result += _list_differences(old_part, new_part)
    if old.co_flags & CO_OPTIMIZED:
        result.append((_key_of(old), new))
    elif _own_parts(old) != _own_parts(new):
        raise SwapError("the change is outside functions")
    return result


def _list_nested(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _own_parts(code: CodeType) -> tuple[object, ...]:
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, constants, code.co_names


def _key_of(code: CodeType) -> CodeKey:
    return code.co_qualname, code.co_firstlineno


def _set_code(function: FunctionType, code: CodeType) -> None:
    if function.__code__.co_freevars != code.co_freevars:
        raise SwapError("the function refers to other variables around it")
    function.__code__ = code
