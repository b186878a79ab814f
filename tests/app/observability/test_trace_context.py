"""W3C's trace context: what is read from headers, and what is sent on."""

import random

import pytest

from antiphon.app.turn_types.tracing.context import MAX_STATE_CHARS, SpanIds, create_root, parse_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (PARENT, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be", True),
        (f" {PARENT}\t", True),
    ],
)
def test_valid_header(header: str, is_sampled: bool) -> None:
    found = parse_context(header)
    assert found == SpanIds(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "-",
        "00",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"{PARENT}\n",
        f"{PARENT}\x00",
        "00-" + "١" * 32 + f"-{SPAN}-01",
        "0" * 100_000,
    ],
)
def test_malformed_header_is_ignored(header: str) -> None:
    assert parse_context(header) is None


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("", ""),
        ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"),
        (" a=1 ,\tb@c=2,, ", "a=1,b@c=2"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a", ""),
        ("a=\x00", ""),
        ("a=b=c", ""),
        (",".join(f"k{number}=v" for number in range(33)), ""),
        ("a=" + "v" * 257, ""),
    ],
)
def test_state(state: str, kept: str) -> None:
    found = parse_context(PARENT, state)
    assert found is not None and found.state == kept


def test_long_state_ends_the_trace() -> None:
    assert parse_context(PARENT, "a=" + "v" * 10_000) is None
    assert parse_context(PARENT, ("a=" + "v" * 200 + ",b=" + "v" * 250)[:MAX_STATE_CHARS]) is not None


def test_headers_of_children_name_their_parent() -> None:
    parent = parse_context(PARENT, "congo=1")
    assert parent is not None
    child = parent.create_child()
    assert (child.trace_id, child.is_sampled, child.state) == (parent.trace_id, True, "congo=1")
    assert child.span_id != parent.span_id
    headers = dict(child.build_headers())
    assert headers == {"traceparent": f"00-{TRACE}-{child.span_hex}-01", "tracestate": "congo=1"}
    assert parse_context(headers["traceparent"], headers["tracestate"]) == child
    unsampled = create_root(trace_id=7, is_sampled=False)
    assert dict(unsampled.build_headers()) == {"traceparent": f"00-{7:032x}-{unsampled.span_hex}-00"}


def test_any_text_is_read_or_ignored() -> None:
    source, alphabet = random.Random(1), "0123456789abcdef-fF \t\n,=\x00é"
    for _ in range(20_000):
        text = "".join(source.choices(alphabet, k=source.randrange(70)))
        changed = list(PARENT)
        for _ in range(source.randrange(4)):
            changed[source.randrange(len(changed))] = source.choice(alphabet)
        for header in (text, "".join(changed)):
            found = parse_context(header, text)
            assert found is None or (found.trace_id > 0 and found.span_id > 0)
