"""`antiphon store`: backs up, restores, checks, measures and prunes a store."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.app.options.serve_options import resolve_store
from antiphon.app.store.base import StoreError

if TYPE_CHECKING:
    from antiphon.app.store.database import Database
    from antiphon.app.store.sql_connection import SqlConnection

MIB = 1 << 20
_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
"""Units of ages, in seconds."""
store_option: Callable[[Any], Any] = click.option(
    "--store",
    envvar="ANTIPHON_STORE",
    help="File or postgresql:// URL of the store. Default: $ANTIPHON_STORE, else the default of `antiphon serve`.",
)
key_file_option: Callable[[Any], Any] = click.option(
    "--encryption-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ANTIPHON_ENCRYPTION_KEY_FILE",
    help="Key file of the store. Default: next to the file.",
)


@click.group("store")
def store_commands() -> None:
    """Back up, restore, check, measure and prune the store of responses."""


@store_commands.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@store_option
@key_file_option
def back_up_store(file: Path, store: str | None, encryption_key_file: Path | None) -> None:
    """Copy the store to FILE, also while servers use it. FILE.json says what it holds, and which key it needs.

    The encryption key is not copied: keep it elsewhere.
    """
    from antiphon.app.store.maintenance.backup import back_up  # noqa: PLC0415  the command line starts fast

    path = _require_file(store, "pg_dump")
    is_terminal = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if is_terminal:
            click.echo(f"\r{done * 100 // max(total, 1):3} %", nl=False, err=True)

    with _report_errors():
        note = back_up(path, file, _find_key_file(path, encryption_key_file), show)
    if is_terminal:
        click.echo("\r", nl=False, err=True)
    click.echo(f"{file}: {note.num_responses} responses, {note.num_bytes / MIB:.1f} MiB")
    if note.key_fingerprint:
        click.echo(f"It needs the encryption key with the fingerprint {note.key_fingerprint}, which is not in it.")


@store_commands.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@store_option
@key_file_option
def restore_store(file: Path, store: str | None, encryption_key_file: Path | None) -> None:
    """Put the backup FILE in the place of the store. A store that is there is kept under another name."""
    from antiphon.app.store.maintenance.backup import restore  # noqa: PLC0415

    path = _require_file(store, "pg_restore")
    with _report_errors():
        kept, warning = restore(file, path, _find_key_file(path, encryption_key_file))
    click.echo(f"{path} is restored.")
    if kept is not None:
        click.echo(f"The store that was there is {kept}.")
    if warning:
        click.echo(warning, err=True)


@store_commands.command("check")
@store_option
def check_store(store: str | None) -> None:
    """Check that the store is whole: its pages, the events of each response, and rows that belong together.

    The exit status is 1 if something is wrong. Servers may run meanwhile.
    """
    from antiphon.app.store.maintenance.inspections import check_pages, find_faults  # noqa: PLC0415
    from antiphon.app.store.sqlite.database import SqliteDatabase  # noqa: PLC0415

    with _report_errors(), _open_database(store) as (database, connection):
        lines = [f"damage: {line}" for line in check_pages(connection)] if isinstance(database, SqliteDatabase) else []
        connection.execute("BEGIN")
        lines += [
            f"{fault.count} {fault.what}, such as {', '.join(fault.examples)}" for fault in find_faults(connection)
        ]
    for line in lines:
        click.echo(line)
    if lines:
        sys.exit(1)
    click.echo("The store is whole.")


@store_commands.command("stats")
@store_option
def show_stats(store: str | None) -> None:
    """Show what the store has, by owner and by age."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from antiphon.app.store.maintenance.inspections import count_by_age, measure_owners  # noqa: PLC0415
    from antiphon.kit.terminal_text import show_line  # noqa: PLC0415

    with _report_errors(), _open_database(store) as (database, connection):
        owners, ages, num_bytes = (
            measure_owners(connection),
            count_by_age(connection, time.time()),
            database.measure_bytes(),
        )
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("owner", "responses", "MiB", "images MiB", "files MiB"):
        table.add_column(column, justify="left" if column == "owner" else "right", overflow="fold")
    for each in owners:
        sizes = (each.response_bytes, each.blob_bytes, each.file_bytes)
        table.add_row(
            escape(show_line(each.owner or "(no key)")), str(each.responses), *(f"{size / MIB:.2f}" for size in sizes)
        )
    console.print(table)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("age", "responses", "MiB"):
        table.add_column(column, justify="left" if column == "age" else "right")
    for age, count, size in ages:
        table.add_row(age, str(count), f"{size / MIB:.2f}")
    console.print()
    console.print(table)
    click.echo(f"\n{num_bytes / MIB:.1f} MiB in all")


@store_commands.command("prune")
@click.option("--older-than", metavar="AGE", help="Age such as 12h, 30d or 8w.")
@click.option("--owner", help="Only responses of this owner, as `antiphon store stats` shows it.")
@click.option("--dry-run", is_flag=True, help="Only tell how many would be deleted.")
@store_option
def prune_store(older_than: str | None, owner: str | None, dry_run: bool, store: str | None) -> None:
    """Delete responses that have ended, with their images. Servers may run meanwhile."""
    if older_than is None and owner is None:
        raise click.UsageError("name an age with --older-than, or an owner with --owner")
    from antiphon.app.store.maintenance.prune import prune_responses  # noqa: PLC0415

    before = None if older_than is None else int(time.time()) - _parse_age(older_than)
    with _report_errors(), _open_database(store) as (database, connection):
        count = prune_responses(database, connection, before, owner, dry_run=dry_run)
    click.echo(f"{count} responses {'would be' if dry_run else 'were'} deleted.")


def _parse_age(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no age such as 12h, 30d or 8w", param_hint="--older-than")
    return int(match[1]) * _UNITS[match[2]]


@contextlib.contextmanager
def _report_errors() -> Iterator[None]:
    """Turns errors of the store into one line."""
    try:
        yield
    except StoreError as error:
        raise click.ClickException(str(error)) from None


def _require_file(store: str | None, tool: str) -> Path:
    path, url = resolve_store(store)
    if url is not None:
        raise click.ClickException(f"the store is a PostgreSQL database: use {tool}")
    if path is None:
        raise click.ClickException("a store in memory ends with its server: it has no file")
    return path


def _find_key_file(path: Path, given: Path | None) -> Path | None:
    return given or path.with_name(f"{path.name}.key")


@contextlib.contextmanager
def _open_database(store: str | None) -> "Iterator[tuple[Database, SqlConnection]]":
    """Opens a store that exists. Raises `StoreError`."""
    path, url = resolve_store(store)
    if url is not None:
        from antiphon.app.store.postgres.address import parse_address  # noqa: PLC0415
        from antiphon.app.store.postgres.database import PostgresDatabase  # noqa: PLC0415

        database: Database = PostgresDatabase(parse_address(url))
    elif path is None:
        raise click.ClickException("a store in memory ends with its server: it has no file")
    else:
        from antiphon.app.store.sqlite.database import SqliteDatabase  # noqa: PLC0415
        from antiphon.app.store.sqlite.schema import open_existing  # noqa: PLC0415

        database = SqliteDatabase(open_existing(path))
    try:
        yield database, database._connection  # a command may ask what no method does
    finally:
        database.close()
