"""Cores on the fake model whose prefixes are kept on disk. Its keys are the tokens themselves: a wrong page shows."""

import random
from array import array
from pathlib import Path
from typing import Any

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.prefix_disk.folder import PageFolder
from antiphon.engine.prefix_disk.opening import probe_layout
from antiphon.engine.prefix_disk.page_id import PageContext, PageId, list_pages
from antiphon.engine.prefix_disk.prefix_disk import PrefixDisk
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.fake_model import FakeModel, build_core_with_fake_model, make_tokens, next_token_by_hash
from tests.engine.tiny_models import join_tokens, make_job, run_jobs

LAYOUT = probe_layout(FakeModel(next_token_by_hash, None))
BODY_BYTES = 2048
SECRET = b"s" * 32
GIB = 1 << 30


def open_disk(
    folder: Path, *, secret: bytes = SECRET, identity: tuple[str, ...] = ("model", "form"), limit: int = GIB
) -> PrefixDisk:
    return PrefixDisk(PageFolder(folder, limit), secret, identity, LAYOUT, ContiguousKVCache)


def build_disk_core(folder: Path, *, disk: dict[str, Any] | None = None, **options: Any) -> Core:
    """Returns a core as after a start. `disk` are options of `open_disk`, `options` those of the core."""
    options = {"max_model_len": 4000, "max_draft_seqs": 0} | options
    return build_core_with_fake_model(prefix_disk=open_disk(folder, **disk or {}), **options)[0]


def run_and_stop(core: Core, *jobs: Job) -> dict[str, list[Chunk]]:
    """Runs the jobs, then stops the core, which writes its prefixes first."""
    chunks = run_jobs(core, *jobs)
    core.close(30.0)
    return chunks


def expect_tokens(job: Job) -> list[int]:
    """Returns the tokens of a job on a core without a disk."""
    core, _ = build_core_with_fake_model(enable_prefix_caching=False, max_draft_seqs=0, max_model_len=4000)
    return join_tokens(run_jobs(core, job)[job.id])


def count_cached(chunks: list[Chunk]) -> int:
    return chunks[0].cached_tokens


def make_page(tokens: list[int] | None = None, parts: tuple[str, ...] = ("me",), index: int = -1) -> PageId:
    """Returns one of the pages of a prompt, the last one by default."""
    ids = array("i", make_tokens(600) if tokens is None else tokens)
    return list(list_pages(PageContext(SECRET, parts), ids, len(ids)))[index]


def make_short_job(tokens: list[int], name: str = "j", **options: Any) -> Job:
    """Returns a job of a few tokens. `options` are those of `make_job`."""
    return make_job(tokens, name, **{"max_tokens": 4} | options)


def damage(content: bytes, random_source: random.Random) -> bytes:
    """Returns a file with one of the faults that disks, crashes and people make."""
    if not content:
        return b"x"
    kind, place = random_source.randrange(6), random_source.randrange(len(content))
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content + random_source.randbytes(1 + place % 7)
    if kind == 2:  # a block that was never written
        length = random_source.randrange(1, 600)
        zeros = content[:place] + bytes(len(content[place : place + length])) + content[place + length :]
        return zeros if zeros != content else b""
    if kind == 3:
        return random_source.randbytes(len(content))
    if kind == 4:  # two parts in each other's place
        return content[place:] + content[:place] if place else content[:-1]
    changed = bytearray(content)
    changed[place] ^= 1 << random_source.randrange(8)
    return bytes(changed)
