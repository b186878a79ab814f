"""The commands of docs/images.md run as they stand there, except for the port and the model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.media.documents import make_pdf
from tests.clients.media.image_requests import RED
from tests.clients.media.vision_model import SAY_IMAGES, vision_registry, write_vision_model
from tests.progress import HANG_TIMEOUT_S
from tests.serving import serve
from tests.syntax import ROOT

PAGE = (ROOT / "docs/images.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
def test_commands_run(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(RED)
    (tmp_path / "report.pdf").write_bytes(make_pdf("gamma delta"))
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "sh", "sh", "python"]
    with serve(vision_registry(write_vision_model(tmp_path / "vision"), [SAY_IMAGES])) as server:
        for language, block in blocks:
            program = ["bash", "-c"] if language == "sh" else [sys.executable, "-c"]
            text = block.replace("http://127.0.0.1:8000/v1", server.url).replace('"antiphon"', '"vision"')
            done = subprocess.run(
                [*program, text], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=True
            )
            assert ("2 images" if language == "python" else "1 image: 4 tokens") in done.stdout, done.stdout
