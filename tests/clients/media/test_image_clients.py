"""Clients of other vendors with images and files, as real programs over real sockets: what the model got of each."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.media.documents import make_pdf
from tests.clients.media.image_requests import RED, Caller
from tests.clients.media.vision_model import data_url, serve_vision
from tests.clients.node_install import copy_node_programs
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.serving import RunningServer

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
FILE_CALL = '<tool_call>\n{"name": "look_at_file", "arguments": {}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "page", "when": ['<page n="1">', "gamma delta"], "output": ["The page: ", {"media": True}]},
    {"name": "seen", "when": ["<tool_response>", "<|image_pad|>"], "output": ["The tool: ", {"media": True}]},
    {"name": "file", "when": ["Look.", '"look_at_file"'], "output": [FILE_CALL]},
    {"name": "call", "when": ["Look.", '"look"'], "output": [CALL]},
    {"name": "images", "output": ["It: ", {"media": True}]},
]
IMAGE, TOOL, PAGE = "It: 1 image: 4 tokens", "The tool: 1 image: 4 tokens", "The page: 1 image: "
QUIET = {"LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1"}
SERVER = partial(serve_vision, replies=SCRIPT)


def make_task(server: RunningServer) -> str:
    """Returns what the programs are given."""
    return json.dumps(
        {
            "url": server.url,
            "model": "vision",
            "image": data_url(RED),
            "pdf": data_url(make_pdf("gamma delta"), "application/pdf"),
            "file_id": Caller(server).upload(RED),
        }
    )


def check_runs(results: dict[str, Any], expected: dict[str, str]) -> None:
    """Checks the answers of both turns of each run: the second has the same images."""
    wrong = {
        name: results.get(name)
        for name, text in expected.items()
        if not all(str(results[name].get(turn)).startswith(text) for turn in ("text", "again"))
    }
    assert not wrong and sorted(results) == sorted(expected), wrong


@pytest.mark.timeout(600)  # the first run installs packages
def test_openai_agents(server: RunningServer, tmp_path: Path) -> None:
    python = install_python_clients("python")
    results = run_program([python, PROGRAMS_FOLDER / "agents_images.py", make_task(server)], tmp_path, **QUIET)
    expected = {"message": IMAGE, "tool": TOOL, "tool, stream, store False": TOOL, "tool, file": TOOL,
                "computer items": TOOL, "computer": "It: 0 images"}  # fmt: skip
    check_runs(results, expected)


@pytest.mark.timeout(600)
def test_langchain(server: RunningServer, tmp_path: Path) -> None:
    python = install_python_clients("python")
    results = run_program([python, PROGRAMS_FOLDER / "langchain_images.py", make_task(server)], tmp_path, **QUIET)
    expected = {
        "responses, image": IMAGE,
        "responses, image_url, stream, store False": IMAGE,
        "responses, pdf": PAGE,
        "responses, tool": TOOL,
        "chat, image": IMAGE,
        "chat, pdf": PAGE,
        "computer, text": TOOL,
        "computer, part": TOOL,
        "anthropic, image": IMAGE,
        "anthropic, pdf": PAGE,
    }
    check_runs(results, expected)


@pytest.mark.timeout(600)
def test_ai_sdk(node: Path, server: RunningServer, tmp_path: Path) -> None:
    folder = copy_node_programs()
    try:
        results = run_program([node, folder / "ai_sdk_images.mjs", make_task(server)], tmp_path)
    finally:
        shutil.rmtree(folder)
    expected = {
        "responses, image": IMAGE,
        "responses, image, stream, store False": IMAGE,
        "responses, file": IMAGE,
        "responses, pdf": PAGE,
        "responses, tool": TOOL,
        "responses, tool, stream": TOOL,
        "chat, image": IMAGE,
        "chat, pdf": PAGE,
        "anthropic, image": IMAGE,
        "anthropic, pdf": PAGE,
        "anthropic, tool": TOOL,
    }
    check_runs(results, expected)
