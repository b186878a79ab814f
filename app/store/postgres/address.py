"""The URL of a PostgreSQL database: connecting to it, and messages that name no user and no password."""

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from antiphon.app.store.base import StoreError

DATABASE_CONNECT_TIMEOUT_S = 5
"""Longest wait for a connection to the database."""
CONNECTION_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": DATABASE_CONNECT_TIMEOUT_S,
    "application_name": "antiphon",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Connection parameters that the URL can override. A connection whose peer has vanished ends within half a minute."""


class DatabaseAddress(Struct, frozen=True):
    """Where a database is, and how to log in."""

    conninfo: str
    label: str
    """The URL with its host and database only."""
    password: str

    def __repr__(self) -> str:
        return self.label

    def connect(self) -> psycopg.Connection[Any]:
        """Connects. Each statement is a transaction of its own, until BEGIN. Raises `StoreError`."""
        try:
            # A prepared statement would be unknown to the next server connection that PgBouncer chooses.
            return psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise StoreError(f"cannot open the store {self.label}: {self.describe_error(error)}") from None

    def describe_error(self, error: Exception) -> str:
        """Returns the reason for an error in one line, without user and password."""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = lines[-1 if lines[0].startswith("Multiple") else 0]
        for introduction in ("FATAL:", "failed: "):
            text = text.rpartition(introduction)[2].strip()
        text = re.sub(r'\b(user|role) "[^"]*"', r"\1", text)
        return text.replace(self.password, "…") if self.password else text


def parse_address(url: str) -> DatabaseAddress:
    """Parses a URL. Raises `StoreError`, which does not repeat the URL: it may hold a password."""
    try:
        given = conninfo_to_dict(url)
        parameters = {**CONNECTION_DEFAULTS, **given}
        conninfo = make_conninfo("", **parameters)
        _reject_split_password(given)
    except (psycopg.Error, ValueError):
        remedy = "percent-encode special characters in the user and the password"
        raise StoreError(f"the URL of --store cannot be parsed; {remedy}") from None
    host = str(given.get("host") or given.get("hostaddr") or "")
    if host.startswith("/"):
        host = ""  # the folder of a Unix socket
    port = f":{given['port']}" if given.get("port") else ""
    label = f"postgresql://{host}{port}/{given.get('dbname') or ''}"
    return DatabaseAddress(conninfo, label, str(given.get("password") or ""))


def _reject_split_password(parameters: Mapping[str, object]) -> None:
    """Raises `ValueError` if a part of a password, which has a slash, was read as a port or a database."""
    port = str(parameters.get("port") or "")
    if "@" in str(parameters.get("dbname") or "") or not all(each.isdecimal() for each in port.split(",") if each):
        raise ValueError("port")
