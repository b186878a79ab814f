"""The pytest plugin: a scripted server, snapshots of event streams, and the checker as an assertion.

pytest loads this module in every run of an environment that has Antiphon, so it imports nothing large but pytest; the
fixtures import the rest.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from antiphon.kit.pytest_plugin.install_hint import INSTALL_HINT

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion

    from antiphon.kit.pytest_plugin.cassette import CassetteServer
    from antiphon.kit.pytest_plugin.server import ScriptedServer

    StartServer = Callable[..., ScriptedServer]
    OpenCassette = Callable[..., CassetteServer]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting of the server's command, and the option of cassettes."""
    parser.getgroup("antiphon").addoption(
        "--cassettes",
        choices=("replay", "record", "rewrite"),
        default="replay",
        help="Cassettes of responses_cassette: replay them, record those that are missing, or record all anew.",
    )
    parser.addini(
        "antiphon_command",
        "Command of responses_server, with its arguments. Default: antiphon, beside Python or on PATH.",
        type="args",
    )


@pytest.fixture
def responses_server(request: pytest.FixtureRequest) -> "Iterator[StartServer]":
    """Starts servers that send scripted replies: `responses_server(replies, **options)`. They stop after the test.

    The replies are a list, such as `{"when": ["weather"], "output": ["Rain."]}`, a text, or a TOML file next to
    the test's own. Options are those of `antiphon serve`, such as `dialect="gpt-oss"`.
    """
    from antiphon.kit.pytest_plugin.server import ServerPool  # noqa: PLC0415  see the module's docstring

    with ServerPool(request.config.getini("antiphon_command"), request.path.parent) as pool:
        yield pool.start_server


@pytest.fixture(scope="session")
def responses_server_factory(request: pytest.FixtureRequest) -> "Iterator[StartServer]":
    """Starts servers as `responses_server` does, for fixtures of a module or session. They stop after the session.

    Files are looked up from pytest's root folder.
    """
    from antiphon.kit.pytest_plugin.server import ServerPool  # noqa: PLC0415  see the module's docstring

    with ServerPool(request.config.getini("antiphon_command"), request.config.rootpath) as pool:
        yield pool.start_server


@pytest.fixture
def responses_cassette(request: pytest.FixtureRequest) -> "Iterator[OpenCassette]":
    """Opens cassettes: `responses_cassette(path=None, upstream=None, api_key=None, match="body", speed=0)`.

    The server that it returns plays the cassette, without a network. `pytest --cassettes=record` records those that
    are missing: requests are forwarded to `upstream`, with `api_key` or the key in OPENAI_API_KEY, and what passes is
    written without secrets. `path` is next to the test's file; without it, the file is in `__cassettes__` and has the
    test's name. A request that the cassette does not have fails the test.
    """
    from antiphon.kit.pytest_plugin.cassette import CassettePool  # noqa: PLC0415  see the module's docstring

    with CassettePool(request.config.getoption("--cassettes"), request.path, request.node.name) as pool:
        yield pool.open_cassette


@pytest.fixture
def event_snapshot(request: pytest.FixtureRequest) -> "SnapshotAssertion":
    """Compares a stream with its snapshot, a text file for each test: `assert event_snapshot == stream`.

    The stream is a list of events (dicts or objects of an SDK), server-sent events as bytes or text, or a `Path` of a
    recorded file. `pytest --snapshot-update` writes the files.
    """
    try:
        from antiphon.kit.pytest_plugin.snapshot_files import StreamSnapshotAssertion  # noqa: PLC0415  see above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "syrupy":
            raise
        pytest.fail(f"event_snapshot needs syrupy, which is not installed: {INSTALL_HINT}", pytrace=False)
    if not request.config.pluginmanager.hasplugin("syrupy"):
        pytest.fail("event_snapshot needs the plugin syrupy, which is disabled", pytrace=False)
    return StreamSnapshotAssertion.create(request.getfixturevalue("snapshot"))


@pytest.fixture
def assert_conformant() -> Callable[..., None]:
    """Fails if a stream breaks a rule of the API: `assert_conformant(stream, request=None, ignore=())`.

    `antiphon.kit.testing` has the same function for an import.
    """
    from antiphon.kit import testing  # noqa: PLC0415  see the module's docstring

    check: Callable[..., Any] = testing.assert_conformant
    return check
