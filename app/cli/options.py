"""Options of `antiphon serve`: those of the annotated structs, from the command line, the environment or a file.

The first source that sets an option wins: the command line, its variable `ANTIPHON_…`, the file, the default. A value
that is refused is reported in one line that names its source.
"""

import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from msgspec import Struct
from msgspec.structs import FieldInfo

from antiphon.app.cli.config_file import load_config_file
from antiphon.app.http.cors import parse_origin
from antiphon.app.options.remote_options import RemoteServeOptions
from antiphon.app.options.serve_options import (
    PER_MODEL_OPTIONS,
    ModelOption,
    ServeError,
    ServeOptions,
    StartOptions,
    flag_name,
    list_options,
)
from antiphon.app.options.settings import Settings
from antiphon.engine.adapters.modules import parse_lora_option
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions, Option

STRUCTS: dict[type[Struct], str] = {
    **dict.fromkeys((ServeOptions, StartOptions, Settings, EngineOptions), ""),
    RemoteServeOptions: "engine_",
}
"""Structs whose annotated fields are options, and what precedes the fields' names in those of the parameters."""
GROUPS = (
    *("Model", "Server", "Keys and TLS", "Replies", "Images and files", "Engine"),
    *("Memory", "Storage", "Remote engines", "Adapters", "Tools", "Logging", "Traces"),
)
"""Headings of `--help`, in order."""
MOST_USED = (
    *("--model", "--port", "--host", "--config", "--api-key-file", "--served-model-name"),
    *("--max-model-len", "--quantization", "--device", "--store", "--engine-url"),
)
"""Options that `--help` describes, in order. `--model` is an argument of `antiphon serve`, which so has ten."""
CONFIG_KEYS = "antiphon.config_keys"
"""Entry of `click.Context.meta`: maps the names of parameters to file and key of the configuration file."""
FULL_HELP = "antiphon.full_help"
"""Entry of `click.Context.meta`: True if all options are to be described."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d)?")
_UNIT_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str) -> float:
    """Returns a duration above 0 in seconds: 90, 90s, 15m, 2h, 1d; infinity for `never`. Raises `ValueError`."""
    if text == "never":
        return math.inf
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a duration: write a number and s, m, h or d, such as 15m, or never")
    return seconds


class ParsedType(click.ParamType[Any]):
    """Text that a function parses. Its `ValueError` or `LoadError` is the reason of a refusal."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the parsed value."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except (ValueError, LoadError) as error:
            self.fail(str(error), param, ctx)


def _parse_model_option(text: str) -> ModelOption:
    """Returns the option of MODEL:OPTION=VALUE. The value is read as that option reads it."""
    left, _, value = text.partition("=")
    model, _, key = left.rpartition(":")
    if not (model and key and value):
        raise ValueError(f"{text!r}: write MODEL:OPTION=VALUE, such as coder:quantization=int4")
    field = PER_MODEL_OPTIONS.get(key.removeprefix("--").replace("_", "-"))
    if field is None:
        raise ValueError(f"{key!r} is no option of one model; choose from {', '.join(PER_MODEL_OPTIONS)}")
    ctx = click.get_current_context()
    option = next(each for each in ctx.command.params if each.name == field)
    return ModelOption(model, field, option.type.convert(value, option, ctx))


_SYNTAXES: dict[str, click.ParamType[Any]] = {
    "file": click.Path(path_type=Path, dir_okay=False),
    **{
        name: ParsedType(name, parse)
        for name, parse in {
            "duration": parse_duration,
            "model:option=value": _parse_model_option,
            "name=path": parse_lora_option,
            "origin": parse_origin,
        }.items()
    },
}
"""Types by the syntax that an option names."""


class _LineType(click.types.StringParamType):
    """Text that may hold blanks: in an environment variable, each line is a value."""

    envvar_list_splitter = "\n"


_SYNTAXES["lines"] = _LineType()


class _SourcedParameter(click.Parameter):
    """A parameter with an environment variable. Errors name the variable, or the key of the configuration file."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Returns the variable's value. An empty one is refused: it could turn off a key or a certificate silently."""
        value = os.environ.get(str(self.envvar))
        if value is None or ctx.resilient_parsing or self.name == "api_keys":  # keys are read from all sources at once
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
    """An option with a group, whose environment variable is `ANTIPHON_` and its name."""

    def __init__(self, declarations: list[str], *, group: str, **attributes: Any) -> None:
        super().__init__(declarations, show_envvar=True, **attributes)
        self.group = group
        self.envvar = f"ANTIPHON_{self.opts[0].removeprefix('--').replace('-', '_').upper()}"


class ServeCommand(click.Command):
    """A command with many options in groups: `--help` describes the most used, and `--help-all` each of them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the parameters with `--help-all` and `--help`."""
        *params, help_option = super().get_params(ctx)
        full_help = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_full_help,
            help="Show all options with their descriptions and exit.",
        )
        return [*params, full_help, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options below the headings of their groups; without `--help-all`, mostly their names."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        groups = {
            name: [each for each in options if getattr(each, "group", "Help") == name] for name in (*GROUPS, "Help")
        }
        if not ctx.meta.get(FULL_HELP):
            by_name = {each.opts[0]: each for each in options}
            _write_group(ctx, formatter, "Most used", [by_name[name] for name in MOST_USED if name in by_name])
            help_group = groups.pop("Help")
            with formatter.section("All others, described by --help-all"):
                for name, group in groups.items():
                    _write_names(formatter, name, [each.opts[0] for each in group if each.opts[0] not in MOST_USED])
            groups = {"Help": help_group}
        for name, group in groups.items():
            _write_group(ctx, formatter, name, group)


def _write_group(ctx: click.Context, formatter: click.HelpFormatter, name: str, options: list[click.Option]) -> None:
    """Writes the descriptions of a group's options. A command may have none of a group."""
    records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(name):
            formatter.write_dl(records)


def _write_names(formatter: click.HelpFormatter, group: str, names: list[str]) -> None:
    """Writes the names of a group's options beside its own, if there are any. No name is broken at a hyphen."""
    column = max(map(len, GROUPS)) + 2
    width = formatter.width - formatter.current_indent - column
    heads = chain([group], repeat(""))
    for head, line in zip(heads, textwrap.wrap(" ".join(names), width, break_on_hyphens=False), strict=False):
        formatter.write(f"{'':{formatter.current_indent}}{head:{column}}{line}\n")


def _show_full_help(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Shows the whole help: the callback of `--help-all`."""
    if is_given and not ctx.resilient_parsing:
        ctx.meta[FULL_HELP] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


BATCH_GROUPS = ("Model", "Replies", "Images and files", "Engine", "Memory", "Remote engines", "Tools")
"""Headings of the options of `antiphon serve` that `antiphon batch` has, too."""


def create_batch_parameters() -> Iterator[click.Parameter]:
    """Yields the parameters of "antiphon batch": two files, `--model`, and the options of models and replies."""
    readable = click.Path(path_type=Path, dir_okay=False, exists=True)
    yield click.Argument(["source"], metavar="IN", type=readable)
    yield click.Argument(["target"], metavar="OUT", type=click.Path(path_type=Path, dir_okay=False))
    yield ServeOption(
        ["--model"], group="Model", multiple=True, help="Folder or hub id, or NAME=MODEL. Default: the embedded model."
    )
    for parameter in create_parameters():
        if isinstance(parameter, ServeOption) and parameter.group in BATCH_GROUPS:
            yield parameter


def create_parameters() -> Iterator[click.Parameter]:
    """Yields the parameters of the command: the argument MODEL, `--config`, and the options of the structs."""
    yield ServeArgument(["model"], nargs=-1, envvar="ANTIPHON_MODEL")
    yield ServeOption(
        ["--config"],
        group="Server",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_apply_config_file,
        help="TOML file with options: their names are the keys. Command line and environment take precedence over it.",
    )
    for struct, prefix in STRUCTS.items():
        for field, option in list_options(struct):
            yield _create_option(field, option, prefix)


def _create_option(field: FieldInfo, option: Option, prefix: str) -> ServeOption:
    """Returns the option that sets a field, with the type and default of the field."""
    kind = field.type.__origin__
    is_repeatable, is_flag = get_origin(kind) is tuple, kind is bool
    if get_origin(kind) in (tuple, Union, UnionType):  # of values, or with None at its end
        kind = get_args(kind)[0]
    name = option.name or flag_name(prefix + field.name.removesuffix("s") if is_repeatable else prefix + field.name)
    return ServeOption(
        [f"--{name}/--no-{name}" if is_flag and field.default else f"--{name}", prefix + field.name],
        group=option.group,
        help=option.description,
        type=None if is_flag else _choose_type(kind, option),
        is_flag=is_flag,
        multiple=is_repeatable,
        default=None if is_repeatable else field.default,
        show_default=field.default not in (None, (), False),
        metavar=option.metavar,
    )


def _choose_type(kind: Any, option: Option) -> Any:
    """Returns the type of click that reads one value of a field."""
    choices = option.choices or (get_args(kind) if get_origin(kind) is Literal else ())
    if choices:
        return click.Choice(choices)
    if kind is int:
        return click.IntRange(option.minimum, option.maximum)
    if kind is float and not option.syntax:
        least = option.minimum if option.above is None else option.above
        return click.FloatRange(least, min_open=option.above is not None)
    return _SYNTAXES[option.syntax] if option.syntax else click.Path(path_type=Path) if kind is Path else str


def pick_fields(struct: type[Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the parameters that set fields of a struct."""
    prefix = STRUCTS[struct]
    return {name: flags[prefix + name] for name in struct.__struct_fields__ if prefix + name in flags}


def _apply_config_file(ctx: click.Context, _: click.Parameter, path: Any) -> None:
    """Makes the values of a configuration file the defaults of the other options: the callback of `--config`."""
    if path is None or ctx.resilient_parsing:
        return
    values = load_config_file(path, ctx.command)
    ctx.meta[CONFIG_KEYS] = {name: f"{path}: {key}" for name, (key, _) in values.items()}
    ctx.default_map = {name: value for name, (_, value) in values.items()}


def is_from_config_file(name: str) -> bool:
    """Tells whether a parameter of the running command has its value from the configuration file."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
