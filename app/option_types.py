"""Options of `antiphon serve`, which come from the command line, the environment or a configuration file.

The first source that sets an option wins: the command line, its variable `ANTIPHON_…`, the file, the default. A value
that is refused is reported in one line that names its source.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from antiphon.app.config_file import ConfigFileError, read_config_file
from antiphon.app.http.cors import parse_origin
from antiphon.app.serve_options import ServeError

CONFIG_KEYS = "antiphon.config_keys"
"""Entry of `click.Context.meta`: maps the names of parameters to file and key of the configuration file."""


class OriginType(click.ParamType[str]):
    """An origin of web pages, or `*`."""

    name = "origin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the origin in the form in which browsers send it."""
        try:
            return parse_origin(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _SourcedParameter(click.Parameter):
    """A parameter with an environment variable. Errors name the variable, or the key of the configuration file."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Returns the variable's value. An empty one is refused: it could turn off a key or a certificate silently."""
        value = os.environ.get(str(self.envvar))
        if value is None or ctx.resilient_parsing:
            return None
        if not value.strip():
            raise ServeError(f"{self.envvar} is empty; set a value, or unset the variable")
        return value

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Takes the value from its source and converts it."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            source = ctx.get_parameter_source(str(self.name))
            if source is click.core.ParameterSource.ENVIRONMENT:
                raise ServeError(f"{self.envvar}: {error.message}") from None
            if source is click.core.ParameterSource.DEFAULT_MAP:
                raise ServeError(f"{ctx.meta[CONFIG_KEYS][self.name]}: {error.message}") from None
            raise


class ServeArgument(_SourcedParameter, click.Argument):
    """The argument MODEL, which may be repeated."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Returns the models of the variable, separated by spaces; the path of a folder may contain some."""
        value = self.resolve_envvar_value(ctx)
        return (value,) if value is not None and Path(value).expanduser().exists() else super().value_from_envvar(ctx)


class ServeOption(_SourcedParameter, click.Option):
    """An option whose environment variable is `ANTIPHON_` and its name."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"show_envvar": True, **attributes})
        self.envvar = f"ANTIPHON_{self.opts[0].removeprefix('--').replace('-', '_').upper()}"


class ApiKeyOption(ServeOption):
    """`--api-key`. Its variable is read, and removed from the environment, with the other sources of keys."""

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        """Returns None."""


def apply_config_file(ctx: click.Context, _: click.Parameter, path: Any) -> None:
    """Makes the values of a configuration file the defaults of the other options: the callback of `--config`."""
    if path is None or ctx.resilient_parsing:
        return
    try:
        values = read_config_file(path, ctx.command)
    except ConfigFileError as error:
        raise ServeError(str(error)) from None
    ctx.meta[CONFIG_KEYS] = {name: f"{path}: {key}" for name, (key, _) in values.items()}
    ctx.default_map = {name: value for name, (_, value) in values.items()}


def is_from_config_file(name: str) -> bool:
    """Tells whether a parameter of the running command has its value from the configuration file."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
