"""What several tests of the engine share."""

import functools

import pytest


@pytest.fixture(params=["torch", "kernels"])
def chosen_either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's ``choose`` with compiled kernels and without."""
    from engine.kernels import kernels

    if request.param == "kernels":
        if kernels() is None:
            pytest.skip("this machine has no C compiler")
        monkeypatch.setattr(request.module, "choose", functools.partial(request.module.choose, kernels=kernels()))
