"""What the browser refuses because of the headers of the page: strings as markup or code, frames, readers elsewhere."""

from functools import partial
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.serving import RunningServer, serve
from tests.web.browser import open_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

SCRIPT = [{"name": "hello", "output": ["Hello."]}]
SERVER = partial(serve, SCRIPT, allowed_origins=("*",))


@pytest.mark.parametrize(
    "code",
    [
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.write('<b>x</b>')",
        "new DOMParser().parseFromString('<b>x</b>', 'text/html')",
        "document.createElement('iframe').srcdoc = '<b>x</b>'",
        "document.createElement('script').src = 'x.js'",
        "document.createElement('script').text = '1'",
        "document.body.setAttribute('onclick', '1')",
        "trustedTypes.createPolicy('mine', {createHTML: (text) => text})",
        "(0, eval)('1')",
        "new Function('1')",
        "new Worker('x.js')",
    ],
)
def test_strings_become_neither_markup_nor_code(browser: Any, server: RunningServer, code: str) -> None:
    with open_page(browser, server.root) as (page, faults):
        page.goto(f"{server.root}/ui/")
        # In a task of its own: code that the debugger evaluates may call eval.
        attempt = f"() => {{ try {{ {code}; return 'done'; }} catch (error) {{ return error.name; }} }}"
        outcome = f"new Promise((done) => setTimeout(() => done(({attempt})())))"
        assert page.evaluate(outcome) in ("TypeError", "EvalError")
        faults.console.clear()
        page.goto(f"{server.root}/health")  # a control: without the policy, the same code runs
        assert page.evaluate(outcome) == "done" or code.startswith(("new Worker", "trustedTypes"))
        faults.console.clear()
        faults.requests.clear()


def test_inline_scripts_styles_and_foreign_files_are_refused(browser: Any, server: RunningServer) -> None:
    script = """async () => {
        const refused = [];
        document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        const style = document.createElement("style");
        style.textContent = "body { color: red }";
        const script = document.createElement("script");
        script.append("window.ran = true");
        document.body.append(image, style, script);
        await fetch("http://127.0.0.1:9/").catch(() => {});
        const form = document.createElement("form");
        form.action = "/v1/models";
        document.body.append(form);
        form.submit();
        await new Promise((done) => setTimeout(done, 300));
        return [[...new Set(refused)].sort(), window.ran ?? null];
    }"""
    with open_page(browser, server.root) as (page, faults):
        page.goto(f"{server.root}/ui/")
        refused, ran = page.evaluate(script)
        assert ran is None
        assert {"connect-src", "form-action", "img-src", "style-src-elem"} <= set(refused)
        assert {"script-src-elem", "require-trusted-types-for"} & set(refused)
        assert page.url == f"{server.root}/ui/"
        faults.console.clear()
        faults.requests.clear()  # attempts, which the policy refused before they left


def test_pages_elsewhere_can_neither_read_nor_frame_it(
    browser: Any, server: RunningServer, start_server: StartServer
) -> None:
    """The API of this server may be read by every origin, which shows that the requests arrive."""
    other = start_server(SCRIPT)
    read = "(url) => fetch(url).then((reply) => reply.status, (error) => error.name)"
    with open_page(browser, other.root) as (page, faults):
        page.goto(f"{other.root}/health")
        assert page.evaluate(read, f"{server.url}/models") == 200
        for path in ("/ui/", "/", "/ui/none"):
            assert page.evaluate(read, server.root + path) == "TypeError"
        load = """async (url) => {
            const frame = document.createElement("iframe");
            frame.src = url;
            const loaded = new Promise((done) => frame.addEventListener("load", done));
            document.body.append(frame);
            await loaded;
        }"""
        page.evaluate(load, f"{server.root}/ui/")
        assert [frame.url for frame in page.frames if frame != page.main_frame] == ["chrome-error://chromewebdata/"]
        faults.console.clear()
        faults.requests.clear()
