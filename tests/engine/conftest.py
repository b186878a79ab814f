"""What several tests of the engine share."""

import functools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from antiphon.engine.kernels.bindings import Kernels


@pytest.fixture(scope="session")
def compiled() -> "Kernels":
    """The kernels of this machine."""
    from antiphon.engine.kernels.library import load_kernels

    found = load_kernels()
    if found is None:
        pytest.skip("this machine has no C compiler")
    return found


@pytest.fixture(params=["torch", "kernels"])
def chosen_either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's ``choose`` with compiled kernels and without."""
    if request.param == "kernels":
        found = request.getfixturevalue("compiled")
        monkeypatch.setattr(
            request.module, "sample_tokens", functools.partial(request.module.sample_tokens, kernels=found)
        )
