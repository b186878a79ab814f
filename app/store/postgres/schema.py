"""The tables in PostgreSQL. Several servers may start at once: one creates them, the others wait."""

import psycopg

from antiphon.app.store.base import StoreError
from antiphon.app.store.postgres.address import DatabaseAddress
from antiphon.app.store.postgres.connection import PostgresConnection
from antiphon.app.store.tables import POSTGRES, SCHEMA_VERSION, TABLES, create_statements, describe_mismatch

CREATION_LOCK = 0x616E7469_70686F6E
"""Key of the advisory lock that a server holds while it creates the tables."""
LIST_COLUMNS = """
SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = current_schema()
"""
OTHER_REMEDY = "Use the Antiphon that wrote it, or give this one an empty database."


def create_tables(address: DatabaseAddress) -> None:
    """Creates the tables, unless they exist. Raises `StoreError`."""
    connection = PostgresConnection(address)
    try:
        _create_missing(connection)
    except psycopg.Error as error:
        raise StoreError(f"cannot open the store {address.label}: {address.describe_error(error)}") from None
    except StoreError as error:
        raise StoreError(f"cannot open the store {address.label}: {error}") from None
    finally:
        connection.close()


def _create_missing(connection: PostgresConnection) -> None:
    connection.run_script(f"BEGIN; SELECT pg_advisory_xact_lock({CREATION_LOCK})")
    columns = connection.execute(LIST_COLUMNS).fetchall()
    if not any(table == "antiphon_schema" for table, _ in columns):
        _refuse_foreign({table for table, _ in columns})
        connection.run_script("; ".join(create_statements(POSTGRES)))
        connection.run_script(f"CREATE TABLE antiphon_schema AS SELECT {SCHEMA_VERSION} AS version")
    elif fault := describe_mismatch(connection.execute("SELECT version FROM antiphon_schema").fetchone()[0], columns):
        raise StoreError(f"{fault}. {OTHER_REMEDY}")
    connection.run_script("COMMIT")


def _refuse_foreign(found: set[str]) -> None:
    for table in TABLES:
        if table.name in found:
            raise StoreError(f"it has a table {table.name} of another program. Give Antiphon a database of its own.")
