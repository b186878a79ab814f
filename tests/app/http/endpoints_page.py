"""Prints `docs/reference/endpoints.md`: `python -m tests.app.http.endpoints_page > docs/reference/endpoints.md`."""

import sys

from antiphon.app.http.endpoints.endpoint import Endpoint, Form, Key
from antiphon.app.main.application import ENDPOINT_TABLE
from antiphon.app.requests.query_fields import AnyQuery, NoQuery

KEYS = {
    Key.NONE: "none",
    Key.CLIENT: "client",
    Key.INSPECTION: "inspection",
    Key.OPERATOR: "operator",
    Key.PAGE: "none (page)",
}
SHAPES = {"openai": "OpenAI", "anthropic": "Anthropic", "by_header": "by header", "ollama": "Ollama"}

_HEAD = """# Endpoints

This page is printed by `python -m tests.app.http.endpoints_page` from the declarations that stand at the handlers. A test checks that the page
is up to date.

- **key**: *client*: an API key, if the server has any. *inspection*: likewise; without API keys, the key of the page. *operator*: an API key whose
  role is `operator`, or the key of the server's runtime file, also on a server without API keys. Requests with the last two keys are refused for
  pages of other origins. A path that is not served needs a key, too.
- **body**: the struct that decodes it ([fields](fields.md)), or a *form* with a file.
- **query**: the struct that decodes it; without one, the endpoint takes no field. The fields are in `/openapi.json`.
- **counts**: the request counts for the [limits](../keys.md#limits) of its key.
- **starts**: API of the turns that it starts, which need a place of the engine.
- **errors**: API whose shape errors have; *by header*: Anthropic's with `anthropic-version`, else OpenAI's.
- **batch**: lines of a batch may be requests to it.
- **audit**: name of the act in the audit log. **HEAD**: answered like the GET. **spans**: traced.

| method | path | key | body | query | counts | starts | errors | batch | audit | HEAD | spans |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def render_page() -> str:
    """Returns the text of the page."""
    return _HEAD + "".join(map(_render_row, ENDPOINT_TABLE.endpoints))


def _render_row(declared: Endpoint) -> str:
    body = "form" if isinstance(declared.body, Form) else "" if declared.body is None else f"`{declared.body.__name__}`"
    cells = (
        declared.method,
        " ".join(f"`{path}`" for path in declared.paths),
        KEYS[declared.key],
        body,
        _render_query(declared),
        "yes" if declared.is_limited else "",
        declared.starts or "",
        SHAPES[declared.shape],
        "yes" if declared.batch else "",
        declared.action,
        "yes" if declared.answers_head else "",
        "yes" if declared.traced else "",
    )
    return f"| {' | '.join(cells)} |\n"


def _render_query(declared: Endpoint) -> str:
    if declared.query is AnyQuery or declared.key is Key.PAGE:
        return "any"
    kinds = [kind for kind in (declared.query, declared.anthropic_query) if kind not in (None, NoQuery)]
    return " ".join(f"`{kind.__name__}`" for kind in kinds if kind is not None)


if __name__ == "__main__":
    sys.stdout.write(render_page())
