"""axe-core on a page, from npm by a lock file."""

from pathlib import Path
from typing import Any

from tests.clients.node_install import install_web_tools


def list_violations(page: Any) -> list[str]:
    """Returns a line for each element that breaks a rule of WCAG 2.2 AA or of axe's best practices.

    The script is evaluated by the debugger's protocol, which the policy of the page does not cover.
    """
    script = install_web_tools() / "axe-core" / "axe.min.js"
    session = page.context.new_cdp_session(page)
    _evaluate(session, Path(script).read_text(encoding="utf-8"))
    result = _evaluate(
        session, "axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.parse(JSON.stringify(r)))"
    )
    session.detach()
    assert len(result["passes"]) > 5, "axe ran no rule"
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
