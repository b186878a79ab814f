"""The real Claude Code reads pictures and PDFs, and continues after one that cannot be used."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.app.media.documents import make_pdf
from tests.clients.claude_code import install_claude_code, run_claude_code
from tests.clients.media.vision_model import make_png, vision_registry
from tests.serving import serve

KEY = "sk-claude-code-test"


def read_file(folder: Path, home: Path, name: str, data: bytes, replies: Sequence[dict[str, Any]]) -> str:
    """Lets Claude Code read a file. Returns its last words."""
    work = home / "work"
    work.mkdir(parents=True)
    (work / name).write_bytes(data)
    arguments = json.dumps({"name": "Read", "arguments": {"file_path": str(work / name)}})
    script = [
        *replies,
        {"name": "read", "when": [f"Look at {name}."], "output": [f"<tool_call>\n{arguments}\n</tool_call>"]},
        {"name": "other", "output": ["Hello."]},
    ]
    with serve(vision_registry(folder, script), api_keys=(KEY,)) as server:
        result = run_claude_code(install_claude_code(), server, f"Look at {name}.", home, KEY, tools="Read")
    assert not result["is_error"], result
    return str(result["result"])


def test_a_picture_is_seen(folder: Path, tmp_path: Path) -> None:
    replies = [{"name": "report", "when": ["<|vision_start|>"], "output": ["I saw ", {"media": True}]}]
    assert read_file(folder, tmp_path, "red.png", make_png(64, 64), replies).startswith("I saw 1 image: 4 tokens")


def test_the_session_continues_after_a_broken_picture(folder: Path, tmp_path: Path) -> None:
    replies = [{"name": "report", "when": ["<tool_response>"], "output": ["I cannot see it."]}]
    assert read_file(folder, tmp_path, "cut.png", make_png(64, 64)[:60], replies) == "I cannot see it."


def test_a_pdf_is_read(folder: Path, tmp_path: Path) -> None:
    replies = [{"name": "report", "when": ['<page n="1">'], "output": ["I read ", {"media": True}]}]
    pdf = make_pdf("gamma delta", "second page")
    assert read_file(folder, tmp_path, "a.pdf", pdf, replies).startswith("I read 2 images")
