"""Prints `docs/reference/options.md`: `python -m tests.options_page > docs/reference/options.md`."""

import sys

import click

from antiphon.app.cli import commands as cli
from antiphon.app.cli.options import GROUPS, ServeOption
from antiphon.app.options.serve_options import FORMAT_FIELDS, PER_MODEL_OPTIONS

HEAD = """# Options of `antiphon serve`

This page is printed by `python -m tests.options_page`. A test compares it with the program.

The first source that sets an option wins: the command line, its environment variable, the file of `--config`, the default. A key of the
file is the option's name without dashes in front. A repeatable option takes several values in a variable, separated by spaces, and an array
in the file. [serving](../serving.md) explains the options by task.

`--model-option MODEL:OPTION=VALUE` gives one of several models its own value of an option marked ●, which holds for every model otherwise,
or ○, which belongs to one model.

The models themselves are the arguments of the command, or the words of `ANTIPHON_MODEL`. Without one, the embedded model is served.
"""


def render_page() -> str:
    """Returns the text of `docs/reference/options.md`."""
    options = [each for each in cli.serve.params if isinstance(each, ServeOption)]
    lines = [HEAD]
    for group in GROUPS:
        lines.append(f"\n## {group}\n\n| option | default | variable | description |\n|---|---|---|---|\n")
        lines += (_render_row(option) for option in options if option.group == group)
    return "".join(lines)


def _render_row(option: ServeOption) -> str:
    context = click.Context(cli.serve)
    names, _, value = (option.get_help_record(context) or ("", ""))[0].partition(" ")
    if option.secondary_opts:
        names, value = "/".join([*option.opts, *option.secondary_opts]), ""
    elif value in ("INTEGER RANGE", "FLOAT RANGE"):
        value = value.removesuffix(" RANGE")
    if (limits := option.get_help_extra(context).get("range")) and isinstance(
        option.type, click.IntRange | click.FloatRange
    ):
        value += f", {limits.replace('<=', ' ≤ ').replace('>=', ' ≥ ').replace('>', ' > ')}"
    written = f"`{names}`" + (f" `{value}`" if value else "").replace("|", r"\|")
    own = {**dict.fromkeys(PER_MODEL_OPTIONS.values(), " ●"), **dict.fromkeys(FORMAT_FIELDS, " ○")}
    default = option.get_help_extra(context).get("default", "")
    return (
        f"| {written}{own.get(str(option.name), '')} | {f'`{default}`' if default else ''} | `{option.envvar}` "
        f"| {option.help} |\n"
    )


if __name__ == "__main__":
    sys.stdout.write(render_page())
