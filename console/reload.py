"""`antiphon reload` and `antiphon drain`: act on a running server."""

from pathlib import Path
from typing import Any

import click

from antiphon.console.server_options import find_target, operator_key_option, url_option

RELOAD_TIMEOUT_S = 60.0
"""Time for the whole reload: the server waits while a file still changes."""


@click.command()
@url_option
@operator_key_option
def reload(url: str | None, api_key_file: Path | None) -> None:
    """Make a server read its file of API keys and its certificate again. Turns that run are not touched.

    The exit status is 1 if a file cannot be used; what it held before stays in force.
    """
    report = post_to_admin(url, api_key_file, "reload")
    for fault in report.get("faults", ()):
        click.echo(f"error: {_show(fault)}", err=True)
    click.echo(f"{report.get('keys')} API keys are in force, {report.get('revoked')} revoked.")
    if report.get("certificate"):
        click.echo("The certificate was read again.")
    click.echo(f"A new start is needed for: {_show(', '.join(report.get('not_reloaded', ())))}.")
    if report.get("faults"):
        raise SystemExit(1)


def post_to_admin(url: str | None, api_key_file: Path | None, action: str) -> dict[str, Any]:
    """Sends a request to `/v1/admin/ACTION` of a server, and returns its reply. Raises `ClickException`."""
    import httpx2  # noqa: PLC0415  the command line starts fast

    from antiphon.kit.json_values import as_table, as_text, decode_object  # noqa: PLC0415

    address, key = find_target(url, api_key_file, "control_key")
    if key is None:
        raise click.ClickException(f"{address.shown_url} is no server of this user: name a file with --api-key-file")
    try:
        reply = httpx2.post(
            f"{address.base_url}/admin/{action}", headers={"authorization": f"Bearer {key}"}, timeout=RELOAD_TIMEOUT_S
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise click.ClickException(f"{address.shown_url} does not answer: {_show(str(error))}") from None
    body = decode_object(reply.content)
    if body is None or reply.status_code != 200:
        message = as_text(as_table(as_table(body).get("error")).get("message")) or f"status {reply.status_code}"
        raise click.ClickException(f"{address.shown_url}: {_show(message)}")
    return body


def _show(text: str) -> str:
    from antiphon.kit.terminal_text import show_controls  # noqa: PLC0415

    return show_controls(text)


@click.command()
@url_option
@operator_key_option
def drain(url: str | None, api_key_file: Path | None) -> None:
    """Make a server end as after SIGTERM: it is not ready any more, and exits once its turns have ended."""
    report = post_to_admin(url, api_key_file, "drain")
    click.echo(f"The server ends; {report.get('running')} responses run.")
