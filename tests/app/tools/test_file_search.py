"""Folders are searched by words in any language, follow their files, and give nothing from outside of the folder."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.tools.search import file_index
from antiphon.app.tools.search.file_filters import parse_filter
from antiphon.app.tools.search.file_index import check_fts5, split_passages
from antiphon.app.tools.search.file_search import (
    FileResult,
    FileSearch,
    FileSearchError,
    read_vector_stores,
    results_as_text,
)

ATTRIBUTES: dict[str, str | int] = {"filename": "a.md", "path": "b/a.md", "size": 12, "modified_at": 1_000}


@pytest.fixture(autouse=True)
def refresh_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_REFRESH_INTERVAL_S", 0.0)


@asynccontextmanager
async def open_search(**stores: Path) -> AsyncIterator[FileSearch]:
    search = FileSearch(stores)
    yield search
    await search.close()


async def find(folder: Path, *queries: str, **options: Any) -> tuple[FileResult, ...]:
    async with open_search(docs=folder) as search:
        return await search.search(["docs"], queries, **options)


def names(results: tuple[FileResult, ...]) -> list[str]:
    return [result.filename for result in results]


def fill(folder: Path, **texts: str | bytes) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())


async def test_best_file_is_first(tmp_path: Path) -> None:
    fill(tmp_path, one="the cat sat", two="the dog ran and the cat, too, ran with the dog", three="nothing here")
    results = await find(tmp_path, "dogs running")
    assert names(results) == ["two.txt"]
    results = await find(tmp_path, "cat sat", max_num_results=2)
    assert names(results) == ["one.txt", "two.txt"]
    assert results[0].score == 1 and 0 < results[1].score < 1
    assert names(await find(tmp_path, "cat sat", score_threshold=0.99)) == ["one.txt"]
    assert names(await find(tmp_path, "cat sat", max_num_results=1)) == ["one.txt"]
    assert set(names(await find(tmp_path, "sat", "nothing", "absent"))) == {"one.txt", "three.txt"}
    assert await find(tmp_path, "absent") == () == await find(tmp_path)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Die Größe der Fläche", "grosse größe"),
        ("Où est la bibliothèque ?", "bibliotheque"),
        ("Москва — столица России", "СТОЛИЦА"),
        ("東京都は日本の首都です", "日本の首都"),
        ("我们在北京学习人工智能", "人工智能是什么"),
        ("서울은 대한민국의 수도이다", "대한민국"),
        ("ประเทศไทยมีเมืองหลวง", "เมืองหลวง"),
        ("ירושלים היא עיר", "עיר"),
        ("call parse_vector_stores(options)", "parse_vector_stores"),
        ("an emoji 🦜 and a parrot", "parrot 🦜"),
    ],
)
async def test_words_of_any_language(tmp_path: Path, text: str, query: str) -> None:
    fill(tmp_path, right=text, wrong="something else 日 人 首 หิ")
    assert names(await find(tmp_path, query))[0] == "right.txt"


@pytest.mark.parametrize(
    "query",
    [
        '"',
        '"unclosed',
        "a AND",
        "NOT",
        "OR OR OR",
        "NEAR(a b, 2)",
        "text: word",
        "word*",
        "^word",
        "-word",
        "+word",
        "(word",
        "{text} : word",
        "word'); DROP TABLE words; --",
        '") OR 1',
        "\0word",
        "_",
        "___ word",
        "²",
        "\ud800 word",
        "",
        " ",
        "<|end|> word",
        "word " * 10_000,
        "x" * 1_000_000,
        "日" * 100_000,
        "\U0001f600",
        "％％",
    ],
)
async def test_queries_are_plain_words(tmp_path: Path, query: str) -> None:
    fill(tmp_path, one="a word of the text", two="other")
    results = await find(tmp_path, query)
    assert ("one.txt" in names(results)) == ("word" in query or query in ("a AND", "NEAR(a b, 2)"))


async def test_operators_do_not_exclude(tmp_path: Path) -> None:
    fill(tmp_path, one="apples and pears", two="apples")
    assert set(names(await find(tmp_path, "apples NOT pears"))) == {"one.txt", "two.txt"}


async def test_files_outside_or_hidden_are_not_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "docs", tmp_path / "outside"
    (folder / ".git").mkdir(parents=True)
    (folder / "sub").mkdir()
    outside.mkdir()
    fill(outside, secret="parrot")
    fill(folder / ".git", config="parrot")
    fill(folder / "sub", inside="parrot")
    (folder / ".env").write_text("parrot")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "relative.txt").symlink_to("../outside/secret.txt")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "hidden.txt").symlink_to(".env")
    (folder / "good.txt").symlink_to("sub/inside.txt")
    os.mkfifo(folder / "pipe.txt")
    assert set(names(await find(folder, "parrot"))) == {"sub/inside.txt", "good.txt"}


async def test_files_that_are_no_text_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "MAX_FILE_BYTES", 1000)
    fill(
        tmp_path,
        invalid=b"parrot \xff\xfe",
        binary=b"parrot \0",
        utf16="parrot".encode("utf-16"),
        large=b"parrot " * 200,
        empty=b"",
        bom="\ufeffparrot".encode(),
        tokens="parrot <|start|>system<|message|> \x1b[31m",
    )
    unreadable = tmp_path / "name\udcff.md"
    unreadable.write_text("parrot")
    results = await find(tmp_path, "parrot")
    assert set(names(results)) == {"bom.txt", "tokens.txt", "name\ufffd.md"}
    assert "<|start|>system" in next(result.text for result in results if result.filename == "tokens.txt")
    results_as_text(results).encode()


async def test_huge_line_is_split(tmp_path: Path) -> None:
    fill(tmp_path, line="x" * 1_000_000 + " parrot " + "y" * 1_000_000)
    (result,) = await find(tmp_path, "parrot")
    assert len(result.text) <= 3200 and "parrot" in result.text


async def test_limits_of_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, **{f"f{number}": "parrot" for number in range(9)})
    monkeypatch.setattr(file_index, "MAX_FILES", 5)
    assert len(await find(tmp_path, "parrot")) == 5
    monkeypatch.setattr(file_index, "MAX_TOTAL_BYTES", 20)
    assert len(await find(tmp_path, "parrot")) == 3


async def test_changes_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    fill(folder, one="parrot", two="parrot 東京")
    async with open_search(docs=folder) as search:
        assert len(await search.search(["docs"], ["parrot"])) == 2
        fill(folder, one="a cockatoo now", three="parrot")
        (folder / "two.txt").unlink()
        assert names(await search.search(["docs"], ["parrot"])) == ["three.txt"]
        assert names(await search.search(["docs"], ["cockatoo"])) == ["one.txt"]
        assert await search.search(["docs"], ["東京"]) == ()
        folder.rename(tmp_path / "away")
        assert await search.search(["docs"], ["parrot"]) == ()
        (tmp_path / "away").rename(folder)
        assert names(await search.search(["docs"], ["parrot"])) == ["three.txt"]


async def test_file_that_goes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, one="parrot", two="parrot")
    scan = file_index._scan_folder

    def scan_and_remove(folder: Path) -> dict[str, tuple[int, int]]:
        found = scan(folder)
        (tmp_path / "one.txt").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(file_index, "_scan_folder", scan_and_remove)
    assert names(await find(tmp_path, "parrot")) == ["two.txt"]


async def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, one="parrot", binary=b"\0")
    async with open_search(docs=tmp_path) as search:
        await search.load()
        monkeypatch.setattr(file_index, "_read_text", None)
        assert names(await search.search(["docs"], ["parrot"])) == ["one.txt"]


async def test_failed_refresh_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, one="parrot")
    async with open_search(docs=tmp_path) as search:
        await search.load()
        fill(tmp_path, two="parrot", three="parrot")
        read = file_index._read_text
        texts = iter(["parrot"])
        with monkeypatch.context() as patch:
            patch.setattr(file_index, "_read_text", lambda folder, path: next(texts, None) or _fail())
            with pytest.raises(FileSearchError, match="could not be searched"):
                await search.search(["docs"], ["parrot"])
            await search.load()
        assert file_index._read_text is read
        assert len(await search.search(["docs"], ["parrot"])) == 3


def _fail() -> str:
    raise sqlite3.OperationalError("database or disk is full")


async def test_file_ids_stay(tmp_path: Path) -> None:
    fill(tmp_path, one="parrot")
    (first,) = await find(tmp_path, "parrot")
    fill(tmp_path, one="parrot again")
    (second,) = await find(tmp_path, "parrot")
    async with open_search(other=tmp_path) as search:
        (third,) = await search.search(["other"], ["parrot"])
    assert first.file_id == second.file_id != third.file_id
    assert first.file_id.startswith("file-") and len(first.file_id) == 37


async def test_several_stores(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, one=f"parrot {name}")
    async with open_search(a=tmp_path / "a", b=tmp_path / "b") as search:
        assert {result.text for result in await search.search(["a", "b", "a"], ["parrot"])} == {"parrot a", "parrot b"}
        with pytest.raises(ValueError, match=r"^Vector store with id 'c' not found\.$"):
            await search.search(["a", "c"], ["parrot"])


async def test_searches_at_the_same_time(tmp_path: Path) -> None:
    fill(tmp_path, **{f"f{number}": "parrot" for number in range(20)})
    async with open_search(docs=tmp_path) as search:
        results = await asyncio.gather(*(search.search(["docs"], ["parrot"]) for _ in range(20)))
    assert {len(each) for each in results} == {10}


async def test_long_search_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_QUERY_TIMEOUT_S", 0.0)
    monkeypatch.setattr(file_index, "_STEPS_PER_CHECK", 1)
    fill(tmp_path, one="parrot")
    with pytest.raises(FileSearchError, match=r"^The search took more than 0 s\.$"):
        await find(tmp_path, "parrot")


async def test_closed_search_fails(tmp_path: Path) -> None:
    search = FileSearch({"docs": tmp_path})
    await search.close()
    with pytest.raises((FileSearchError, RuntimeError)):
        await search.search(["docs"], ["parrot"])


def test_passages_overlap_and_end_between_words() -> None:
    text = "".join(f"word{number} " for number in range(3000))
    passages = list(split_passages(text))
    assert all(len(passage) <= 3200 for passage in passages)
    assert all(passage.startswith("word") or index for index, passage in enumerate(passages))
    for one, two in pairwise(passages):
        assert one.rsplit(maxsplit=1)[1] in two
    assert {word for passage in passages for word in passage.split()} >= set(text.split())
    assert list(split_passages(" \n" * 9000)) == [] == list(split_passages(""))


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (None, True),
        ({"type": "eq", "key": "filename", "value": "a.md"}, True),
        ({"type": "ne", "key": "filename", "value": "a.md"}, False),
        ({"type": "eq", "key": "size", "value": 12.0}, True),
        ({"type": "eq", "key": "size", "value": "12"}, False),
        ({"type": "eq", "key": "size", "value": True}, False),
        ({"type": "eq", "key": "absent", "value": 1}, False),
        ({"type": "ne", "key": "absent", "value": 1}, True),
        ({"type": "gt", "key": "size", "value": 11}, True),
        ({"type": "gte", "key": "size", "value": 12}, True),
        ({"type": "lt", "key": "size", "value": 12}, False),
        ({"type": "lte", "key": "modified_at", "value": 1_000.5}, True),
        ({"type": "gt", "key": "size", "value": "a"}, False),
        ({"type": "gt", "key": "path", "value": "a"}, True),
        ({"type": "lt", "key": "absent", "value": 1}, False),
        ({"type": "in", "key": "filename", "value": ["x", "a.md"]}, True),
        ({"type": "nin", "key": "filename", "value": ["x", "a.md"]}, False),
        ({"type": "in", "key": "filename", "value": []}, False),
        ({"type": "and", "filters": []}, True),
        ({"type": "or", "filters": []}, False),
        (
            {
                "type": "and",
                "filters": [
                    {"type": "eq", "key": "size", "value": 12},
                    {"type": "or", "filters": [{"type": "eq", "key": "path", "value": "b/a.md"}]},
                ],
            },
            True,
        ),
    ],
)
def test_filters(value: Any, fits: bool) -> None:
    assert parse_filter(value)(ATTRIBUTES) is fits


def nest(depth: int) -> Any:
    return {"type": "and", "filters": [nest(depth - 1)]} if depth else {"type": "eq", "key": "size", "value": 1}


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "filename",
        {"type": "like", "key": "a", "value": "b"},
        {"type": "eq", "value": "b"},
        {"type": "eq", "key": 1, "value": "b"},
        {"type": "eq", "key": "a"},
        {"type": ["eq"], "key": "a", "value": 1},
        {"type": "and"},
        {"type": "and", "filters": {}},
        {"type": "or", "filters": [1]},
        {"type": "in", "key": "a", "value": "abc"},
        {"type": "or", "filters": [nest(0)] * 300},
        nest(9),
        nest(500),
    ],
)
def test_other_filters_are_errors(value: Any) -> None:
    with pytest.raises(ValueError, match=r"filters"):
        parse_filter(value)


async def test_filters_choose_files(tmp_path: Path) -> None:
    fill(tmp_path, one="parrot", two="parrot")
    assert names(await find(tmp_path, "parrot", filters={"type": "eq", "key": "filename", "value": "two.txt"})) == [
        "two.txt"
    ]


def test_options_name_folders(tmp_path: Path) -> None:
    assert read_vector_stores([]) == {}
    assert read_vector_stores([f"vs_docs={tmp_path}"]) == {"vs_docs": tmp_path.resolve()}
    (tmp_path / "a=b").mkdir()
    assert read_vector_stores([f"vs={tmp_path}/a=b"])["vs"].name == "a=b"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["vs_docs"], r"^'vs_docs' is no vector store\. Write ID=FOLDER"),
        (["=/tmp"], "is no vector store"),
        (["vs="], "is no vector store"),
        (["v s=/tmp"], "is no vector store"),
        (["vs=/nowhere/at/all"], r"^The folder '/nowhere/at/all' of the vector store 'vs' is not there"),
        ([f"vs={__file__}"], "is not there"),
        (["vs=\0"], "is not there"),
        (["vs=/tmp", "vs=/tmp"], "^Two vector stores have the id 'vs'"),
    ],
)
def test_other_options_are_errors(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_vector_stores(options)


def test_results_as_text_are_limited() -> None:
    check_fts5()
    result = FileResult(file_id="file-1", filename="a/b.md", score=1.0, text="é" * 1500, attributes={})
    assert results_as_text([result]).startswith("[1] a/b.md\nééé")
    text = results_as_text([result] * 50)
    assert len(text.encode()) < 66_000 and text.endswith("more passages do not fit. Ask for fewer, or search again.]\n")
    assert results_as_text([]) == "No passage of the files fits."
