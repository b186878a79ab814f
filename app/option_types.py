"""Types and classes of command-line options."""

from typing import Any

import click

from antiphon.app.http.cors import parse_origin


class OriginType(click.ParamType[str]):
    """An origin of web pages, or `*`."""

    name = "origin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the origin in the form in which browsers send it."""
        try:
            return parse_origin(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
