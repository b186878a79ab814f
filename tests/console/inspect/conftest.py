"""The server whose turns the tests of `antiphon inspect` show."""

from collections.abc import Iterator

import pytest

from tests.app.inspection.inspector import Inspector
from tests.console.inspect.inspect_script import SCRIPT, write_key
from tests.serving import scripted_registry, serve


@pytest.fixture(scope="module")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspector]:
    """A server, and the runtime file by which the command finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        registry = scripted_registry(SCRIPT, max_num_seqs=64)
        with serve(registry, inspect="memory") as server, Inspector(server) as opened:
            write_key(server)
            yield opened
