"""`antiphon keys`: adds, lists and revokes the API keys of a file."""

import contextlib
import re
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click

from antiphon.app.keys.file_edits import NewKeyError, TomlValue, add_key, create_key, edit_file, remove_keys
from antiphon.app.keys.key_file import LIMIT_NAMES, is_toml, parse_key_file, read_key_file
from antiphon.app.options.api_keys import ApiKey, ApiKeyError

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)?)?")
_OPTIONS = {"models": "model"}
"""Options by the field of the file that they set, where the names differ."""
RELOAD_NOTE = "Servers that use the file notice it within seconds."
_file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def keys() -> None:
    """Add, list and revoke the API keys of a file, which `antiphon serve --api-key-file` reads."""


@keys.command("add")
@_file_argument
@click.option("--owner", help="Name of the owner. Without one, the key is an owner of its own.")
@click.option("--owner-digest", help="SHA-256 digest of an old key, whose stored responses the owner takes over.")
@click.option("--model", "models", multiple=True, help="Model that the key may use; repeatable. Default: all.")
@click.option("--role", type=click.Choice(("client", "operator")), help="Default: client.")
@click.option("--expires", metavar="DATE", help="Such as 2027-01-31, or 2027-01-31T12:00:00Z.")
@click.option("--store-gib", type=float, help="Size of what the owner may store, in GiB.")
@click.option("--max-concurrent", type=int, help="Turns that may run or wait at the same time.")
@click.option("--requests-per-minute", type=int)
@click.option("--tokens-per-minute", type=int)
@click.option("--tokens-per-day", type=int)
@click.option("--tokens-per-month", type=int)
def add(file: Path, **options: Any) -> None:
    """Add a new key to FILE, which is created if it is missing. Prints the key: it is not shown again."""
    fields: dict[str, TomlValue] = {
        name: value for name in ("owner", "owner_digest", "role") if (value := options[name]) is not None
    }
    if options["models"]:
        fields["models"] = options["models"]
    fields |= {name: options[name] for name in (*LIMIT_NAMES, "store_gib") if options[name] is not None}
    if options["expires"] is not None:
        fields["expires"] = _read_date(options["expires"])
    key = create_key()
    with _report_errors(file), edit_file(file) as texts:
        converts = bool(texts[0].strip()) and not is_toml(texts[0])
        edited = add_key(texts[0], file, key, fields)
        if parse_key_file(edited, file)[-1].is_expired(time.time()):
            raise NewKeyError("expires", f"{options['expires']!r} is in the past")
        texts[0] = edited
    if converts:
        click.echo(f"{file}: the keys of its lines have tables with their digests now.", err=True)
    click.echo(f"The key is shown only here. {RELOAD_NOTE}", err=True)
    click.echo(key)


@keys.command("list")
@_file_argument
def list_keys(file: Path) -> None:
    """List the keys of FILE, without the keys themselves."""
    from rich.console import Console  # noqa: PLC0415  the command line starts fast
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    with _report_errors(file):
        found = read_key_file(file)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True, min_width=max((len(key.id) for key in found), default=0))  # `revoke` takes it
    for column in ("owner", "role", "models", "expires", "limits"):
        table.add_column(column, overflow="fold")
    for key in found:
        table.add_row(*map(escape, _describe(key)))
    Console(highlight=False).print(table)


@keys.command("revoke")
@_file_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--owner", help="Revoke all keys of this owner.")
def revoke(file: Path, ids: tuple[str, ...], owner: str | None) -> None:
    """Remove keys from FILE, by the ids that `antiphon keys list` shows."""
    if not ids and owner is None:
        raise click.UsageError("name the ids of keys, or an owner with --owner")
    with _report_errors(file), edit_file(file) as texts:
        if not texts[0]:
            raise click.ClickException(f"{file}: there is no such file")
        texts[0], removed = remove_keys(
            texts[0], file, lambda key: key.id in ids or (owner is not None and owner in (key.name, key.owner))
        )
        missing = set(ids) - {key.id for key in removed}
        if missing or not removed:
            raise click.ClickException(f"{file}: no key {' or '.join(sorted(missing)) or f'of {owner}'}")
    click.echo(f"{len(removed)} revoked. {RELOAD_NOTE}")


@contextlib.contextmanager
def _report_errors(file: Path) -> Iterator[None]:
    """Turns errors of the file into one line."""
    try:
        yield
    except NewKeyError as error:
        option = _OPTIONS.get(error.field, error.field).replace("_", "-")
        raise click.BadParameter(error.fault, param_hint=f"--{option}") from None
    except ApiKeyError as error:
        raise click.ClickException(str(error)) from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{file}: it is not UTF-8") from None
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from None


def _read_date(text: str) -> date:
    """Returns the date, or the date and time, that an option has. Raises `click.BadParameter`."""
    try:
        if _DATE.fullmatch(text):
            found: date = tomllib.loads(f"expires = {text}")["expires"]
            return found
    except ValueError:  # such as the 30th of February
        pass
    raise click.BadParameter(f"{text!r} is no date such as 2027-01-31, or 2027-01-31T12:00:00Z", param_hint="--expires")


def _describe(key: ApiKey) -> tuple[str, ...]:
    expires = "" if key.expires is None else f"{datetime.fromtimestamp(key.expires, UTC):%Y-%m-%d %H:%M}"
    if key.is_expired(time.time()):
        expires += " (expired)"
    limits = [f"{name}={value}" for name in LIMIT_NAMES if (value := getattr(key.limits, name)) is not None]
    limits += [
        f"owner {name}={value}" for name in LIMIT_NAMES if (value := getattr(key.owner_limits, name)) is not None
    ]
    if key.store_gib is not None:
        limits.append(f"store_gib={key.store_gib:g}")
    models = "all" if key.models is None else ", ".join(sorted(key.models))
    return key.id, key.name or key.owner, key.role, models, expires, ", ".join(limits)
