"""Links to sources are found when they end, in a text that is split in any way."""

import random
import time
from typing import Any

import pytest

from antiphon.app.tools.search.citations import CitationFinder, SourceList, WebSource
from tests.counts import FULL_COUNTS

A, B = "https://a.example/page", "https://b.example/wiki/Foo_(bar)"
SOURCES = SourceList((WebSource(url=A, title="A page"), WebSource(url=B)))
ALPHABET = ["[", "]", "(", ")", "!", "\\", "\n", " ", '"', "<", ">", "x", A, B, "[a](", f"[a]({A})", f"]({B})", "]("]


def find(*pieces: str, sources: SourceList = SOURCES) -> list[tuple[str, str, str]]:
    """Returns the text of each link, its URL and title, and checks that it ends where the finder says."""
    finder, text, links = CitationFinder(sources), "", []
    for piece in pieces:
        for end, length, url, title in finder.feed(piece):
            whole = text + piece[:end]
            assert 0 < end <= len(piece)
            links.append((whole[len(whole) - length :], url, title))
        text += piece
    return links


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (f"See [a]({A}).", [f"[a]({A})"]),
        (f"[a]({A})[b]({B})", [f"[a]({A})", f"[b]({B})"]),
        (f"see [b]({B}), ([b]({B}))", [f"[b]({B})", f"[b]({B})"]),
        (f"[[1]]({A})", [f"[[1]]({A})"]),
        (f"[a [b] c]({A})", [f"[a [b] c]({A})"]),
        (f"[a [b]({A})", [f"[b]({A})"]),
        (f"[a [b]({A}) c]({B})", [f"[b]({A})"]),
        (f"[a] [b]({A})", [f"[b]({A})"]),
        (f"[]({A})", [f"[]({A})"]),
        (f"[é日]({A})", [f"[é日]({A})"]),
        (f"[a\nb]({A})", [f"[a\nb]({A})"]),
        (f'[a]({A} "the title :)")', [f'[a]({A} "the title :)")']),
        (f"[a]( <{A}> )", [f"[a]( <{A}> )"]),
        (f"[a]({A}/)", [f"[a]({A}/)"]),
        (f"[a]({A}#part)", [f"[a]({A}#part)"]),
        ("[a](HTTPS://A.Example/page)", ["[a](HTTPS://A.Example/page)"]),
        (f"[a](no [b]({A}) link)", [f"[b]({A})"]),
        (f"[a](no\n[b]({A})", [f"[b]({A})"]),
        (f"[![image](https://c.example/i.png)]({A})", [f"[![image](https://c.example/i.png)]({A})"]),
        (f"\\\\[a]({A})", [f"[a]({A})"]),
        ("[b](https://b.example/wiki/Foo_\\(bar\\))", ["[b](https://b.example/wiki/Foo_\\(bar\\))"]),
        (f"![a]({A})", []),
        (f"\\[a]({A})", []),
        (f"[a\\]({A})", []),
        (f"[a] ({A})", []),
        (f"[a]({A}", []),
        (f"[a]({A} is nice)", []),
        (f"[a\n\nb]({A})", []),
        (f"[a](\n{A})", []),
        ("[a](https://c.example)", []),
        (f"[a][1]\n\n[1]: {A}", []),
        (f"{A} ({A})", []),
        ("[a]()", []),
        (f"[{'x' * 2000}]({A})", []),
        (f"[a]({A}{' ' * 3000})", []),
    ],
)
def test_links_to_sources(text: str, links: list[str]) -> None:
    assert [link for link, _, _ in find(text)] == links
    assert find(*text) == find(text)


def test_url_and_title_are_those_of_the_source() -> None:
    assert find(f"[my words]({A}/#x)[my  words]({B})") == [
        (f"[my words]({A}/#x)", A, "A page"),
        (f"[my  words]({B})", B, "my words"),
    ]


def test_every_split_finds_the_same() -> None:
    generator = random.Random(7)
    for _ in range(20_000 if FULL_COUNTS else 750):
        text = "".join(generator.choices(ALPHABET, k=generator.randint(1, 14)))
        cuts = sorted(generator.choices(range(len(text) + 1), k=generator.randint(0, 6)))
        pieces = [text[one:two] for one, two in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert find(*pieces) == find(text) == find(*text), (text, pieces)


@pytest.mark.parametrize(
    "unit",
    ["[", "]", "[a](", "[a](x", "![", "((", "](", f"[a]({A}", "[[a]", "\\", "\n", '[a]( "', "[a](<", f"[a]({A}) "],
)
def test_time_is_linear(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    start = time.process_time()
    finder = CitationFinder(SOURCES)
    for index in range(0, len(text), 5):
        finder.feed(text[index : index + 5])
    assert time.process_time() - start < 20
    assert len(finder._links._kept) < 5000


SEARCH = {
    "query": "x",
    "results": [
        {"title": " One \n page ", "url": "https://one.example/", "thumbnail": {"url": "https://pictures.example/1"}},
        {"name": "Two", "link": "https://two.example", "deep": [{"href": "http://three.example/?a=[]"}]},
        {"url": "https://one.example"},
        {"url": "ftp://four.example"},
        {"url": "javascript:alert(1)"},
        {"url": "https://user:key@five.example"},
        {"url": "https://six.example/a b"},
        {"url": "https://"},
        {"url": 7},
    ],
    "more": ["https://seven.example", "text", None, 5],
}
FOUND = [
    ("https://one.example/", "One page"),
    ("https://two.example", "Two"),
    ("http://three.example/?a=[]", ""),
    ("https://seven.example", ""),
]


def list_sources(text: str, structured: Any = None, links: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(source.url, source.title) for source in SourceList.from_outcome(text, structured, links).sources]


def test_sources_of_a_structured_result() -> None:
    import json

    assert list_sources("see https://text.example", SEARCH) == FOUND
    assert list_sources(json.dumps(SEARCH)) == FOUND
    assert list_sources("", SEARCH, ("https://two.example", "https://link.example")) == [
        *FOUND,
        ("https://link.example", ""),
    ]


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("", []),
        ("no URL: http:// https://", []),
        ("{not json https://a.example}", [("https://a.example", "")]),
        (
            "See https://a.example/x. Or (https://b.example/Foo_(bar))!",
            [("https://a.example/x", ""), ("https://b.example/Foo_(bar)", "")],
        ),
        (
            "[The page](https://a.example/x) and [https://b.example](https://b.example)",
            [("https://a.example/x", "The page"), ("https://b.example", "https://b.example")],
        ),
        (
            "Title: One\nURL: https://a.example\n\n**Title:** Two\nText\nURL: https://b.example\nURL: https://c.example",
            [("https://a.example", "One"), ("https://b.example", "Two"), ("https://c.example", "")],
        ),
        (
            '"https://a.example", <https://b.example>, `https://c.example`',
            [("https://a.example", ""), ("https://b.example", ""), ("https://c.example", "")],
        ),
        ("https://a.example https://A.EXAMPLE/#x Title: no", [("https://a.example", "")]),
        ("https://" + "x" * 3000 + " https://b.example", [("https://b.example", "")]),
    ],
)
def test_sources_in_a_text(text: str, sources: list[tuple[str, str]]) -> None:
    assert list_sources(text) == sources


def test_number_of_sources_is_limited() -> None:
    text = " ".join(f"https://a.example/{number}" for number in range(200))
    assert len(list_sources(text)) == 50
    sources = SourceList.from_outcome(text)
    assert len(sources.join(SourceList.from_outcome("https://b.example")).sources) == 50
    assert [source.url for source in SOURCES.join(sources).sources[:3]] == [A, B, "https://a.example/0"]


def test_list_for_the_model() -> None:
    assert SOURCES.as_text() == f"1. A page: {A}\n2. {B}"
    assert SourceList().as_text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 50_000,
        "\n" * 500_000,
        "https://)" * 50_000,
        "Title:" * 50_000,
        "https://a.b" + ")" * 500_000,
        " https://" * 50_000,
    ],
)
def test_hostile_results_take_little_time(text: str) -> None:
    start = time.process_time()
    SourceList.from_outcome(text)
    assert time.process_time() - start < 10


def test_deep_structure_is_read() -> None:
    deep: Any = {"url": "https://a.example"}
    for _ in range(10_000):
        deep = [deep]
    assert list_sources("", deep) == [("https://a.example", "")]
    assert len(list_sources("", [[{"url": "x"}] * 300] * 1000)) == 0
