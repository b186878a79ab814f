"""The model of the tests with images."""

from pathlib import Path

import pytest

from tests.clients.media.vision_model import write_vision_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a model that sees, without weights."""
    return write_vision_model(tmp_path_factory.mktemp("vision"))
