"""Fixtures of the stores: each test that uses `place` runs over SQLite and over PostgreSQL."""

from pathlib import Path

import pytest

from tests.app.store.store_helpers import (
    AnyPlace,
    MemoryPlace,
    PostgresPlace,
    SqlitePlace,
    StorePlace,
)
from tests.postgres_server import PostgresServer


@pytest.fixture
def postgres_place(postgres_server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(postgres_server.create_database())


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "store" / "responses.db")
    found: StorePlace = request.getfixturevalue("postgres_place")
    return found


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> AnyPlace:
    if request.param == "memory":
        return MemoryPlace()
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "store" / "responses.db")
    found: StorePlace = request.getfixturevalue("postgres_place")
    return found
