"""Every example of the README works, as it stands there but for the port and the model behind it."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import httpx
import pytest

from antiphon.app.observability.startup import CODEX_CONFIG
from antiphon.engine.scripted.engine import parse_script
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BASE = "http://127.0.0.1:8000/v1"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT = [
    {"name": "report", "when": ["weather", "4 degrees"], "output": ["It is 4 degrees and raining."]},
    {"name": "weather", "when": ["weather"], "output": [CALL]},
    {"name": "hello", "output": ["Hello, ", "I am a script."]},
]


def blocks(language: str, holding: str) -> list[str]:
    found = [text for kind, text in BLOCKS if kind == language and holding in text]
    assert found, f"the README has no {language} block with {holding!r}"
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry(SCRIPT, names=("antiphon",))) as running:
        yield running


@pytest.mark.parametrize("block", blocks("sh", "curl"))
def test_the_curl_examples(served: RunningServer, block: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        ["bash", "-c", block.replace(BASE, served.url)], capture_output=True, text=True, timeout=30, check=True
    )
    assert "Hello, I am a script." in done.stdout
    assert '"error":{' not in done.stdout


PRINTED = [
    "Hello, I am a script.\nHello, I am a script.\n",
    'get_weather {"city": "Oslo"}\nIt is 4 degrees and raining.\n',
]


@pytest.mark.parametrize(("block", "says"), list(zip(blocks("python", "OpenAI("), PRINTED, strict=True)))
def test_the_python_examples(served: RunningServer, block: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.replace(BASE, served.url)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == says


def test_the_codex_block_is_the_banners() -> None:
    (block,) = blocks("toml", "model_provider")
    assert tomllib.loads(block) == tomllib.loads(CODEX_CONFIG.format(model="antiphon", url=BASE))


def test_the_script_example_plays() -> None:
    (block,) = blocks("toml", "[[reply]]")
    with serve(scripted_registry(tomllib.loads(block)["reply"])) as running:
        body = {"model": "scripted", "input": "weather?", "tools": [{"type": "function", "name": "get_weather"}]}
        output = httpx.post(f"{running.url}/responses", json=body).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert output[1]["arguments"] == '{"city": "Oslo"}'
    assert parse_script(tomllib.loads(block))


def test_every_make_target_the_docs_name_exists() -> None:
    words = set(re.findall(r"\bmake ([a-z][a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert words - {"sure"} <= targets


def test_every_file_the_docs_name_is_there() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name} names {target}"
