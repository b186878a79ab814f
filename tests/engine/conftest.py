"""Fixtures of the engine's tests: compiled kernels, and sampling with and without them."""

import functools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from antiphon.engine.kernels.bindings import Kernels


@pytest.fixture(scope="session")
def compiled_kernels() -> "Kernels":
    """The CPU kernels compiled on this machine. Skips the test without a C compiler, fails it if they are refused."""
    from tests.engine.kernel_builds import require_kernels

    return require_kernels()


@pytest.fixture(params=["torch", "kernels"])
def with_and_without_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with the module's `sample_tokens` on torch operations, and on compiled kernels."""
    if request.param == "kernels":
        kernels = request.getfixturevalue("compiled_kernels")
        monkeypatch.setattr(
            request.module, "sample_tokens", functools.partial(request.module.sample_tokens, kernels=kernels)
        )
