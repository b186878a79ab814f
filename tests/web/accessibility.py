"""axe-core on a page, from npm by a lock file, in every look that a page has."""

import json
from collections.abc import Sequence
from typing import Any

from tests.clients.node_install import install_web_tools

LOOKS = ((1280, "light"), (1280, "dark"), (320, "light"))
"""Widths of the screen in pixels, and color schemes."""


def check_every_look(page: Any) -> None:
    """Checks a page on a wide and a narrow screen, light and dark. The narrow one must not scroll sideways.

    Of the rules, only that of contrasts depends on the colors, which depend on no width.
    """
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 800})
        # Without motion, since a color is another one while it changes.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        rules = ["color-contrast"] if scheme == "dark" else []
        assert list_violations(page, rules) == [], f"{width} px, {scheme}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"


def list_violations(page: Any, rules: Sequence[str] = ()) -> list[str]:
    """Returns a line for each element that breaks a rule of WCAG 2.2 AA or of axe's best practices, or one of `rules`.

    The script is evaluated by the debugger's protocol, which the policy of the page does not cover.
    """
    session = page.context.new_cdp_session(page)
    if not _evaluate(session, "'axe' in window"):
        script = install_web_tools() / "axe-core" / "axe.min.js"
        _evaluate(session, script.read_text(encoding="utf-8"))
    options = json.dumps({"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {}))
    result = _evaluate(session, f"axe.run(document, {options}).then((r) => JSON.parse(JSON.stringify(r)))")
    session.detach()
    assert len(result["passes"]) >= (len(rules) or 6), "axe ran no rule"
    return [
        f"{violation['id']}: {node['html']} {node.get('failureSummary', '')}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]


def _evaluate(session: Any, expression: str) -> Any:
    options = {"expression": expression, "awaitPromise": True, "returnByValue": True}
    reply = session.send("Runtime.evaluate", options)
    assert "exceptionDetails" not in reply, reply
    return reply["result"].get("value")
