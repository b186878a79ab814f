"""Writes the pictures of the page in the README: `python -m tests.web.screenshots`.

A scripted server runs a turn that thinks, speaks and calls a tool; its timeline is shown in the light and the dark look.
"""

import io
from pathlib import Path

import httpx
from PIL import Image

from antiphon.kit.cli.demo import REQUEST
from tests.serving import serve
from tests.syntax import ROOT
from tests.web.browser import open_browser, open_page

FOLDER = ROOT / "docs" / "pictures"
SIZE = {"width": 1200, "height": 860}
COLORS = 48
"""Entries of the palette of a picture: text and few colours need no more, and the files stay small."""
SCRIPT = [
    {
        "name": "weather",
        "output": [
            "<think>The user wants the weather in Oslo, so a tool has to look it up.</think>",
            {"pause": 0.3},
            "I will look it up for you.",
            {"pause": 0.2},
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}</tool_call>',
        ],
    }
]


def write_screenshots(folder: Path) -> list[Path]:
    """Writes one picture a look, and returns their paths."""
    paths = []
    with serve(SCRIPT) as server:
        reply = httpx.post(f"{server.root}/v1/responses", json={**REQUEST, "stream": False}).json()
        with open_browser() as browser:
            for look in ("light", "dark"):
                with open_page(browser, server.root, viewport=SIZE, color_scheme=look) as (page, _):
                    page.goto(f"{server.root}/ui/turns/{reply['id']}#key={server.context.page_key}")
                    page.get_by_role("option").nth(14).click()
                    page.evaluate("scrollTo(0, 0)")
                    paths.append(folder / f"turn-{look}.png")
                    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                    picture.quantize(COLORS).save(paths[-1], optimize=True)
    return paths


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in write_screenshots(FOLDER):
        print(path.relative_to(ROOT), path.stat().st_size)
