"""The files and command lines of `docs/cluster.md` fit the program."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.cli import commands as cli
from antiphon.app.cli.config_file import load_config_file
from antiphon.app.options.serve_options import check_store_url, resolve_store
from antiphon.app.store.postgres.store import PostgresStore
from tests.app.deployment_files import parse_serve
from tests.postgres_server import PASSWORD, PostgresServer
from tests.syntax import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_configuration_file_and_command_line_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = read_blocks("toml")
    file = tmp_path / "serve.toml"
    file.write_text(text, encoding="utf-8")
    assert {key for key, _ in load_config_file(file, cli.serve).values()} == tomllib.loads(text).keys()
    from_file = parse_serve(["serve", "--config", str(file)], {}, monkeypatch)
    (line,) = [line for block in read_blocks("sh") for line in block.splitlines() if "--engine-url" in line]
    from_line = parse_serve(shlex.split(line)[1:], {}, monkeypatch)
    found: dict[str, Any] = {name: from_line[name] for name in from_line if name != "config"}
    assert found == {name: from_file[name] for name in found}
    _, url = resolve_store(from_file["store"])
    assert url is not None
    check_store_url(url, from_file["encryption_key_file"], is_in_file=True)


async def test_password_may_be_in_a_password_file(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:antiphon:{PASSWORD.replace(':', chr(92) + ':')}\n", encoding="utf-8")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    database = postgres_server.create_database().rpartition("/")[2]
    store = PostgresStore(f"postgresql://antiphon@127.0.0.1:{postgres_server.port}/{database}")
    try:
        assert store.unavailable_reason() is None and await store.read_log("me", "resp_a") is None
    finally:
        await store.close()
