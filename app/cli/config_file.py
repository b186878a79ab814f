"""The configuration file of `antiphon serve`: TOML with the names of options as keys.

Keys are written with `-` or `_`. Repeatable options take arrays or one string, flags take booleans. Paths are relative
to the working directory, as on the command line. Secrets are refused, because such files are shared and kept in
repositories.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any

import click

from antiphon.app.options.serve_options import ServeError

SECRETS = {
    "api-key": "name a file with keys in api-key-file, or set ANTIPHON_API_KEY",
    "ssl-keyfile-password": "set ANTIPHON_SSL_KEYFILE_PASSWORD",
}
"""Options that a file must not contain, and what to do instead."""


def load_config_file(path: Path, command: click.Command) -> dict[str, tuple[str, Any]]:
    """Returns key and value of each parameter of the command that the file sets. Raises `ServeError`.

    Values have the right type; their ranges and choices are checked where the parameters are converted.
    """
    parameters = {_key(parameter): parameter for parameter in command.params if parameter.name != "config"}
    found: dict[str, tuple[str, Any]] = {}
    for written, value in _load_toml(path).items():
        key = written.replace("_", "-")
        if key in SECRETS:
            raise ServeError(f"{path}: {written}: secrets do not belong into this file; {SECRETS[key]}")
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters.keys() - SECRETS.keys(), 1)
            hint = f"; did you mean {near[0]}?" if near else "; see `antiphon serve --help`"
            raise ServeError(f"{path}: {written}: unknown key{hint}")
        name = str(parameters[key].name)
        if name in found:
            raise ServeError(f"{path}: {written}: the option is set twice, also as {found[name][0]}")
        types, expected = _value_types(parameters[key])
        is_repeatable = parameters[key].nargs == -1 or bool(getattr(parameters[key], "multiple", False))
        entries = value if is_repeatable and isinstance(value, list) else [value]
        if any(type(entry) not in types for entry in entries):
            array = ", or an array of strings" if is_repeatable else ""
            raise ServeError(f"{path}: {written}: expected {expected}{array}")
        found[name] = (written, entries if is_repeatable else value)
    return found


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ServeError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ServeError(f"{path}: is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ServeError(f"{path}: is not valid TOML: {error}") from None


def _key(parameter: click.Parameter) -> str:
    return parameter.opts[0].removeprefix("--")


def _value_types(parameter: click.Parameter) -> tuple[tuple[type, ...], str]:
    """Returns the types that one value may have in the file, and their name in a refusal."""
    if getattr(parameter, "is_flag", False):
        return (bool,), "true or false"
    if isinstance(parameter.type, click.IntRange):
        return (int,), "an integer"
    return ((int, float), "a number") if isinstance(parameter.type, click.FloatRange) else ((str,), "a string")
