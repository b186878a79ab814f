"""Examples and names in the documentation. Examples run unchanged except for the port and the model."""

import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial

import httpx
import pytest

from antiphon.app.observability.startup import CODEX_CONFIG
from antiphon.engine.scripted.engine import parse_script
from antiphon.harmony.dialect import Dialect
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = ("docs/requests.md", "docs/agents.md", "docs/serving.md", "docs/scripted-replies.md")
BLOCKS: list[tuple[str, str]] = [
    block
    for text in (README, *((ROOT / page).read_text(encoding="utf-8") for page in GUIDES))
    for block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
MAX_README_LINES = 160
BASE_URL = "http://127.0.0.1:8000/v1"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT = [
    {"name": "report", "when": ["weather", "4 degrees"], "output": ["It is 4 degrees and raining."]},
    {"name": "weather", "when": ["weather"], "output": [CALL]},
    {"name": "hello", "output": ["Hello, ", "I am a script."]},
]


def find_blocks(language: str, fragment: str) -> list[str]:
    blocks = [text for block_language, text in BLOCKS if block_language == language and fragment in text]
    assert blocks, f"the README and the guides have no {language} block with {fragment!r}"
    return blocks


SERVER = partial(serve, partial(scripted_registry, SCRIPT, names=("antiphon",)))


def test_example_of_the_pytest_plugin_is_the_one_that_runs() -> None:
    """`tests/kit/pytest_plugin/test_page.py` runs the programs of that page."""
    (block,) = find_blocks("python", "def test_")
    page = (ROOT / "docs/testing-agents.md").read_text(encoding="utf-8")
    assert re.sub(r"  # .*", "", block) in page


@pytest.mark.parametrize("block", find_blocks("sh", "curl"))
def test_curl_examples_run(server: RunningServer, block: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    result = subprocess.run(
        ["bash", "-c", block.replace(BASE_URL, server.url)], capture_output=True, text=True, timeout=30, check=True
    )
    assert "Hello, I am a script." in result.stdout
    assert '"error":{' not in result.stdout


GREETINGS = "Hello, I am a script.\nHello, I am a script.\n"
PYTHON_EXAMPLE_OUTPUTS = [
    GREETINGS,
    GREETINGS,
    'get_weather {"city": "Oslo"}\nIt is 4 degrees and raining.\n',
]


@pytest.mark.parametrize(
    ("block", "expected"), list(zip(find_blocks("python", "import OpenAI"), PYTHON_EXAMPLE_OUTPUTS, strict=True))
)
def test_python_examples_print_the_expected_output(server: RunningServer, block: str, expected: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", block.replace(BASE_URL, server.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == expected


def test_codex_config_equals_the_startup_banner() -> None:
    (block,) = find_blocks("toml", "model_provider")
    assert tomllib.loads(block) == tomllib.loads(CODEX_CONFIG.format(model="antiphon", url=BASE_URL))


def test_script_example_is_replayed() -> None:
    (block,) = find_blocks("toml", "[[reply]]")
    with serve(scripted_registry(tomllib.loads(block)["reply"])) as server:
        body = {"model": "scripted", "input": "weather?", "tools": [{"type": "function", "name": "get_weather"}]}
        output = httpx.post(f"{server.url}/responses", json=body).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert output[1]["arguments"] == '{"city": "Oslo"}'
    assert parse_script(tomllib.loads(block))


def test_readme_can_be_read_in_a_minute() -> None:
    assert README.count("\n") <= MAX_README_LINES, "move the reference to a page of docs/"


def test_readme_says_in_one_sentence_what_it_is_and_then_where_to_start() -> None:
    introduction = README.partition("\n## ")[0]
    first = introduction.split("\n\n")[1].partition(". ")[0]
    assert len(first.split()) <= 20
    assert "| you | start at |" in introduction


def test_list_of_pages_names_each_page_once() -> None:
    folder = ROOT / "docs"
    pages = {str(path.relative_to(folder)) for path in folder.rglob("*.md")} - {"README.md"}
    listed = re.findall(r"^\| \[[\w-]+\]\(([\w/-]+\.md)\)", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def test_make_test_runs_every_test_that_reads_snapshots() -> None:
    """Otherwise it takes their files for unused ones, and fails."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:ENGINE|CLIENT|PROCESS)_TESTS = ((?:.*\\\n)*.*)", makefile, re.MULTILINE)
    elsewhere = {word for line in lines for word in line.split() if word.startswith("tests/")}
    readers = {path for path in ROOT.glob("tests/**/*.py") if "import SnapshotAssertion" in path.read_text("utf-8")}
    assert elsewhere and readers
    found = {
        str(path.relative_to(ROOT)) for path in readers if any(path.is_relative_to(ROOT / each) for each in elsewhere)
    }
    assert not found, "move them to tests/snapshots"


def test_dialect_example_defines_a_dialect() -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/dialects.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    scope: dict[str, object] = {}
    exec(block, scope)
    assert isinstance(scope["LFM2"], Dialect)
