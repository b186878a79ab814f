"""The plugin is installed beside the packages of other projects: what it requires are ranges."""

import re
import tomllib

import pytest

from tests.syntax import ROOT
from tests.test_layers import EXTERNAL_IMPORTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = {
    re.split(r"[<>=!~\[]", line)[0]: line
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["pytest"]]
}
NEIGHBOURS = {"websockets": ("15.0.1", "16.1.1"), "msgspec": ("0.20.0", "0.21.1"), "litestar": ("2.24.0",)}
"""Versions that projects beside the plugin have: openai-agents 0.24 demands websockets below 17, for example."""
COMES_WITH = {"referencing": "jsonschema"}


@pytest.mark.parametrize("name", [*sorted(EXTERNAL_IMPORTS["kit"]), "litestar"])
def test_requirement_of_the_kit_is_a_range(name: str) -> None:
    requirement = REQUIREMENTS[COMES_WITH.get(name, name)]
    assert "==" not in requirement and ">=" in requirement, requirement


@pytest.mark.parametrize(
    ("name", "version"), [(name, each) for name, versions in NEIGHBOURS.items() for each in versions]
)
def test_requirement_allows_the_versions_of_neighbours(name: str, version: str) -> None:
    from packaging.requirements import Requirement

    assert Requirement(REQUIREMENTS[name]).specifier.contains(version)


def test_extra_of_the_kit_has_no_test_runner() -> None:
    assert PROJECT["optional-dependencies"]["kit"] == [REQUIREMENTS["jsonschema"]]
