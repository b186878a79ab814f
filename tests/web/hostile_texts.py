"""Texts that run a script, load a file elsewhere or change the program on a page that treats them as more than text.

`FIRE` is replaced by a call that tells the test. `test_hostile_texts.py` shows that each text does its harm on a page
without defences, by the way that `HOSTILE_TEXTS` names.
"""

from typing import Any

from tests.serving import RunningServer

HOSTILE_TEXTS: dict[str, tuple[str, ...]] = {
    # Written into a document.
    "markup": (
        "<script>FIRE</script>",
        "<SCRIPT>FIRE</SCRIPT>",
        "<script/x>FIRE</script>",
        "<script\n>FIRE</script\n>",
        "</script><script>FIRE</script>",
        "</style><script>FIRE</script>",
        "</title><script>FIRE</script>",
        "</textarea><script>FIRE</script>",
        "--><script>FIRE</script>",
        "]]><script>FIRE</script>",
        '"><script>FIRE</script>',
        "'><script>FIRE</script>",
        "<script type=module>FIRE</script>",
        "<script src='data:text/javascript,FIRE'></script>",
        "<img src=x onerror=FIRE>",
        "<IMG SRC=x ONERROR=FIRE>",
        "<img src=x onerror='FIRE'>",
        '<img src=x onerror="FIRE">',
        '<img/src="x"/onerror=FIRE>',
        "<img src=x\tonerror=FIRE>",
        "<img src=x\nonerror=FIRE>",
        "<img src=x\x0conerror=FIRE>",
        "<img src=x onerror=&#116;op.fire(NUMBER)>",
        "<img src=x onerror=top.\\u0066ire(NUMBER)>",
        "<img src=x onerror=eval('FIRE')>",
        "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==' onload=FIRE>",
        "<image src=x onerror=FIRE>",
        "<picture><img src=x onerror=FIRE></picture>",
        "<video><source onerror=FIRE></video>",
        "<video src=x onerror=FIRE></video>",
        "<audio src=x onerror=FIRE></audio>",
        "<object data=x onerror=FIRE></object>",
        "<link rel=stylesheet href=x onerror=FIRE>",
        "<style onload=FIRE></style>",
        "<body onload=FIRE>",
        "<body onpageshow=FIRE>",
        "<details open ontoggle=FIRE>",
        "<svg onload=FIRE>",
        "<svg/onload=FIRE>",
        "<svg><script>FIRE</script></svg>",
        "<svg><script>top.&#102;ire(NUMBER)</script></svg>",
        "<svg><animate onbegin=FIRE attributeName=x dur=1s>",
        "<svg><set onbegin=FIRE attributeName=x>",
        "<svg><image href=x onerror=FIRE></svg>",
        "<svg><style><img src=x onerror=FIRE></style></svg>",
        "<svg><foreignObject><img src=x onerror=FIRE></foreignObject></svg>",
        "<math><mtext><img src=x onerror=FIRE></mtext></math>",
        "<iframe onload=FIRE></iframe>",
        "<iframe src='javascript:FIRE'></iframe>",
        "<iframe srcdoc='<script>FIRE</script>'></iframe>",
        "<iframe srcdoc='&lt;img src=x onerror=FIRE&gt;'></iframe>",
        "<table background=x><tr><td><img src=x onerror=FIRE></table>",
        '<noscript><p title="</noscript><img src=x onerror=FIRE>">',
        '<svg></p><style><a id="</style><img src=x onerror=FIRE>">',
        "<math><annotation-xml encoding='text/html'><img src=x onerror=FIRE></annotation-xml></math>",
        "<template><script>1</script></template><img src=x onerror=FIRE>",
        "<xss style='animation:x' onanimationstart=FIRE><style>@keyframes x{}</style>",
        "<a href=x>text</a\n><img src=x onerror=FIRE>",
        '![x](x"onerror="FIRE)<img src=x onerror=FIRE>',
        "```html\n<img src=x onerror=FIRE>\n```",
        "<img src=x onerror=FIRE//\u202e>",
        "<b>\0<img src=x onerror=FIRE></b>",
    ),
    # Followed as a link.
    "link": (
        "javascript:FIRE",
        "JaVaScRiPt:FIRE",
        "java\nscript:FIRE",
        "java\tscript:FIRE",
        " javascript:FIRE",
        "\x01javascript:FIRE",
        "javascript://x%0aFIRE",
    ),
    # Taken as the text of a template or a program.
    "template": (
        "${FIRE}",
        "`+FIRE+`",
        "`,FIRE,`",
        "\\`${FIRE}",
    ),
    # Taken as a style, which then loads a file elsewhere.
    "style": (
        "background:url(http://evil.example/NUMBER)",
        "background:url('//evil.example/NUMBER')",
        "list-style:url(http://evil.example/NUMBER);display:list-item",
        "background:image-set('http://evil.example/NUMBER' 1x)",
    ),
    # Taken as the name of a field by a program that copies objects field by field.
    "field": ("__proto__", "constructor.prototype"),
    # Taken as an id or name of an element, which then hides a variable of the program.
    "name": ("hidden_by_name",),
}


def list_texts() -> list[tuple[str, str]]:
    """Returns the way and the text of each, with its number in place."""
    found: list[tuple[str, str]] = []
    for way, texts in HOSTILE_TEXTS.items():
        for text in texts:
            number = str(len(found))
            found.append((way, text.replace("FIRE", f"top.fire({number})").replace("NUMBER", number)))
    return found


Json = dict[str, Any]
TEXTS = [text for _, text in list_texts()]
LISTEN = "window.fired = []; window.fire = (number) => { fired.push(number); };"
FOREIGN_ELEMENTS = (
    "img, image, iframe, svg, math, object, embed, style, video, audio, base, meta[http-equiv], template, form[action],"
    "script:not([src]), link:not([rel=stylesheet]):not([rel=modulepreload]), [style*=url], [srcdoc], [background]"
)


def listen(page: Any) -> None:
    page.add_init_script(LISTEN)


def check_unharmed(page: Any, server: RunningServer, *, shown: str = TEXTS[0]) -> None:
    """Checks that the text is on the page, and that no text did anything there. `open_tab` checks its requests."""
    assert shown in page.locator("body").inner_text().replace("\n", " ")
    assert page.evaluate("[fired, ({}).polluted ?? null, typeof hidden_by_name]") == [[], None, "undefined"]
    assert (
        page.evaluate(
            "(selector) => [...document.querySelectorAll(selector)].map((e) => e.outerHTML)", FOREIGN_ELEMENTS
        )
        == []
    )
    addresses = page.evaluate("[...document.querySelectorAll('a')].map((link) => link.href)")
    assert [address for address in addresses if not address.startswith(f"{server.root}/ui/")] == []
    handlers = page.evaluate(
        "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames()).filter((n) => n.startsWith('on'))"
    )
    assert handlers == []


def hostile_response(text: str, output: list[Json] | None = None) -> Json:
    names = ("id", "object", "status", "model", "instructions", "previous_response_id", "user", "safety_identifier")
    return dict.fromkeys(names, text) | {
        "output": output or [],
        "metadata": {text: text},
        "error": {"code": text, "message": text},
        "tools": [
            {"type": text, "name": text, "description": text, "parameters": {"properties": {text: {"enum": [text]}}}}
        ],
        "__proto__": {"polluted": text},
        "constructor": {"prototype": {"polluted": text}},
    }


def hostile_events(text: str) -> list[Json]:
    """Events that hold a text in every field that may hold one."""
    annotation = {"type": text, "url": text, "title": text, "file_id": text, "filename": text}
    part = {"type": text, "text": text, "refusal": text, "annotations": [annotation]}
    item = dict.fromkeys(("id", "type", "role", "name", "namespace", "call_id", "arguments", "input", "output"), text)
    item |= {"content": [part], "summary": [part], "action": {"commands": [text]}, text: text, "status": text}
    item |= {"__proto__": {"polluted": text}, "constructor": {"prototype": {"polluted": text}}}
    place = {"output_index": 0, "content_index": 0, "summary_index": 0, "item_id": text, "command_index": 0}
    streams = ("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments")
    streams += ("custom_tool_call_input", "apply_patch_call_operation_diff", "shell_call_command", text)
    events: list[Json] = [{"type": "response.created", "response": hostile_response(text)}]
    events += [{"type": "response.output_item.added", "item": item} | place]
    events += [
        {"type": f"response.{stream}.delta", "delta": text, "logprobs": [{"token": text}]} | place for stream in streams
    ]
    events += [
        {"type": "response.output_text.annotation.added", "annotation_index": 0, "annotation": annotation} | place
    ]
    events += [{"type": "error", "message": text, "code": text, "param": text, "error": {"message": text}}]
    events += [{"type": text, text: text}, {"type": "response.output_text.delta", "output_index": text, "delta": text}]
    events += [{"type": "response.failed", "response": hostile_response(text, [item])}]
    return [event | {"sequence_number": n} for n, event in enumerate(events)]


def open_everything(page: Any) -> None:
    """Opens all parts of a page that can be opened, and those inside them. A part exists once the one around it is open."""
    script = "[...document.querySelectorAll('details:not([open])')].map((part) => { part.open = true; }).length"
    for _ in range(12):
        if page.evaluate(script) == 0:
            return
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


ODD_TEXT = "a\ud800b\x00c\u202ed\u2066e\u200bf\x1b[2Jg\x9bh\u2028i" + "e" + "\u0301" * 500 + "\U0001f44d"
