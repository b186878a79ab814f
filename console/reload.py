"""`antiphon reload` and `antiphon drain`: act on a running server."""

from pathlib import Path
from typing import Any

import click

from antiphon.console.server_options import operator_key_option, url_option

TIMEOUT_S = 60.0
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

    from antiphon.console.server_address import (  # noqa: PLC0415
        ServerAddressError,
        find_api_key,
        find_control_key,
        find_server,
    )

    try:
        address = find_server(url)
        key = (find_control_key(address) if api_key_file is None else None) or find_api_key(api_key_file)
    except ServerAddressError as error:
        raise click.UsageError(str(error)) from None
    if key is None:
        raise click.ClickException(f"{address.shown_url} is no server of this user: name a file with --api-key-file")
    try:
        reply = httpx2.post(
            f"{address.base_url}/admin/{action}", headers={"authorization": f"Bearer {key}"}, timeout=TIMEOUT_S
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise click.ClickException(f"{address.shown_url} does not answer: {_show(str(error))}") from None
    try:
        body = reply.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or reply.status_code != 200:
        sent = body.get("error") if isinstance(body, dict) else None
        message = sent.get("message") if isinstance(sent, dict) else None
        raise click.ClickException(f"{address.shown_url}: {_show(str(message or f'status {reply.status_code}'))}")
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
