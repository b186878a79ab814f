"""Pages: what decides about their names, and that no damaged or foreign file is read as one."""

import io
import os
import random
from array import array
from pathlib import Path

import pytest

from antiphon.engine.prefix_disk.page_file import PAGE_MAGIC, DamagedPageError, PageCodec
from antiphon.engine.prefix_disk.page_id import TOKENS_PER_PAGE as SIZE
from antiphon.engine.prefix_disk.page_id import PageContext, PageId, list_pages
from tests.engine.fake_model import make_tokens
from tests.engine.prefix_disk.disk_cores import BODY_BYTES, SECRET, damage, make_page

CODEC = PageCodec(SECRET, BODY_BYTES)
BODY = random.Random(1).randbytes(BODY_BYTES)
NUM_DAMAGED_PAGES = 1000


def encrypt(page: PageId, body: bytes = BODY, codec: PageCodec = CODEC) -> bytes:
    buffer = codec.create_buffer()
    codec.view_body(buffer)[:] = body
    return b"".join(codec.encrypt(page, buffer))


def decrypt(page: PageId, content: bytes, path: Path, codec: PageCodec = CODEC) -> bytes:
    path.write_bytes(content)
    buffer = codec.create_buffer()
    with path.open("rb") as file:
        codec.decrypt(page, file, buffer)
    return bytes(codec.view_body(buffer))


def test_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    page = make_page()
    content = encrypt(page)
    assert len(content) == CODEC.file_bytes and content.startswith(PAGE_MAGIC)
    assert decrypt(page, content, tmp_path / "p") == BODY
    assert encrypt(page) != content, "the nonce is another one"
    assert BODY[:16] not in content and bytes(page.own_ids)[:16] not in content


def test_pages_are_whole_and_follow_each_other() -> None:
    tokens = array("i", make_tokens(800))
    pages = list(list_pages(PageContext(SECRET, ["me"]), tokens, 3 * SIZE - 1))
    assert [(page.start, page.end) for page in pages] == [(0, SIZE), (SIZE, 2 * SIZE)]
    assert list(memoryview(pages[1].own_ids).cast("i")) == make_tokens(800)[SIZE : 2 * SIZE]
    assert not list(list_pages(PageContext(SECRET, ["me"]), tokens, SIZE - 1))


def test_name_depends_on_everything() -> None:
    tokens = make_tokens(600)
    others = [
        make_page(tokens, index=0),
        make_page([9, *tokens[1:]]),
        make_page([*tokens[: 9 * SIZE - 1], 9, *tokens[9 * SIZE :]]),
        make_page(tokens, ("you",)),
        make_page(tokens, ("m", "e")),
        make_page(tokens, ("me", "")),
        list(list_pages(PageContext(b"other", ("me",)), array("i", tokens), 600))[-1],
    ]
    names = {page.name for page in (make_page(tokens), *others)}
    assert len(names) == 1 + len(others)
    assert make_page([*tokens[: 9 * SIZE], 9]).name == make_page(tokens).name


def test_no_damaged_page_is_read(tmp_path: Path) -> None:
    page, random_source = make_page(), random.Random(7)
    content = encrypt(page)
    for _ in range(NUM_DAMAGED_PAGES):
        with pytest.raises(DamagedPageError):
            decrypt(page, damage(content, random_source), tmp_path / "p")


def test_every_bit_of_the_ends_counts(tmp_path: Path) -> None:
    page = make_page()
    content = encrypt(page)
    for place in (*range(60), *range(len(content) - 40, len(content))):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(DamagedPageError):
            decrypt(page, bytes(changed), tmp_path / "p")


def test_page_of_another_origin_is_not_read(tmp_path: Path) -> None:
    """Even under the same digest: the hash is not what proves that the tokens are the same."""
    page, tokens = make_page(), make_tokens(600)
    foreign = [
        make_page(tokens, ("you",)),
        make_page(tokens, ("we",)),
        make_page([*tokens[:300], 9, *tokens[301:]]),
        make_page([9, *tokens[1:]]),
        make_page(tokens, index=0),
    ]
    for other in foreign:
        other.digest = page.digest
        with pytest.raises(DamagedPageError):
            decrypt(page, encrypt(other), tmp_path / "p")
    with pytest.raises(DamagedPageError):
        decrypt(page, encrypt(page, codec=PageCodec(b"other", BODY_BYTES)), tmp_path / "p")
    with pytest.raises(DamagedPageError):
        decrypt(page, encrypt(page, BODY + bytes(8), PageCodec(SECRET, BODY_BYTES + 8)), tmp_path / "p")


def test_file_that_shrinks_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    page, path = make_page(), tmp_path / "p"
    path.write_bytes(encrypt(page))

    class ShrinkingFile(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            os.truncate(path, 200)
            return super().read(size) or b""

    with ShrinkingFile(path) as file, pytest.raises(DamagedPageError):
        CODEC.decrypt(page, file, CODEC.create_buffer())  # type: ignore[arg-type]
