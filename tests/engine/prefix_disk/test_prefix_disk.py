"""Prefixes on disk in a core: who reuses them after a restart, and that nothing wrong or foreign is ever reused."""

import errno
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.prefix_disk import loading, writer
from antiphon.engine.prefix_disk.folder import PageFolder
from antiphon.engine.prefix_disk.page_id import TOKENS_PER_PAGE
from antiphon.engine.scheduler import disk_prefixes
from antiphon.engine.scheduler.core import Core
from tests.engine.fake_model import make_tokens
from tests.engine.prefix_disk.disk_cores import (
    build_disk_core,
    count_cached,
    damage,
    expect_tokens,
    make_short_job,
    open_disk,
    run_and_stop,
)
from tests.engine.tiny_models import join_tokens, run_jobs

PROMPT = make_tokens(900)
WHOLE = 896
"""Tokens of the whole pages of the prompt."""

NUM_DAMAGED_STARTS = 60
NUM_RANDOM_STARTS = 20


def list_page_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.page"))


def run_next_turn(folder: Path, prompt: list[int] = PROMPT, *, disk: Any = None, **job: Any) -> int:
    """Runs a job after a restart, checks its tokens, and returns how many of its prompt were cached."""
    job = {"max_tokens": 8} | job
    request = make_short_job(prompt, **job)
    chunks = run_and_stop(build_disk_core(folder, disk=disk), request)["j"]
    assert join_tokens(chunks) == expect_tokens(make_short_job(prompt, **job))
    return count_cached(chunks)


def test_next_turn_after_a_restart_reads_its_prefix(tmp_path: Path) -> None:
    core = build_disk_core(tmp_path)
    first = run_and_stop(core, make_short_job(PROMPT, max_tokens=200))["j"]
    num_pages = (len(PROMPT) + len(join_tokens(first)) - 1) // TOKENS_PER_PAGE
    assert count_cached(first) == 0 and num_pages > WHOLE // TOKENS_PER_PAGE
    assert core.stats().disk_pages_written == num_pages == len(list_page_files(tmp_path))
    text = [*PROMPT, *join_tokens(first), *make_tokens(50, 3)]
    core = build_disk_core(tmp_path)
    job = make_short_job(text, max_tokens=8)
    chunks = run_jobs(core, job)["j"]
    assert join_tokens(chunks) == expect_tokens(job)
    assert count_cached(chunks) == num_pages * TOKENS_PER_PAGE, "generated tokens are reused like those of the prompt"
    stats = core.stats()
    assert stats.disk_hit_tokens == stats.prefix_hit_tokens == count_cached(chunks) and not stats.disk_pages_damaged
    assert count_cached(run_and_stop(core, make_short_job(text))["j"]) > count_cached(chunks), (
        "then the memory knows more"
    )
    assert core.stats().disk_pages_written <= 2, "what is there is not written again"


def test_prompt_that_differs_reuses_the_pages_before(tmp_path: Path) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    assert run_next_turn(tmp_path, [*PROMPT[:600], 5, 5, 5]) == 576
    assert run_next_turn(tmp_path, [5, *PROMPT]) == 0
    assert run_next_turn(tmp_path, PROMPT[:512]) == 448, "one token is left to compute"


@pytest.mark.parametrize(
    ("job", "disk"),
    [
        ({"owner": "other"}, {}),
        ({"cache_salt": "other"}, {}),
        ({"owner": "me", "cache_salt": ""}, {}),
        ({}, {"identity": ("other model", "form")}),
        ({}, {"identity": ("model", "other form")}),
        ({}, {"identity": ("model",)}),
        ({}, {"secret": b"other"}),
    ],
)
def test_nothing_is_shared(tmp_path: Path, job: dict[str, Any], disk: dict[str, Any]) -> None:
    mine = {"owner": "me", "cache_salt": "salt"}
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT, **mine))
    assert run_next_turn(tmp_path, disk=disk, **mine | job) == 0
    assert run_next_turn(tmp_path, **mine) == WHOLE


def test_little_more_than_the_memory_knows_is_not_read(tmp_path: Path) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    core = build_disk_core(tmp_path, disk={"secret": b"other"})
    run_jobs(core, make_short_job(PROMPT[:810]))
    core.cache_manager.disk.disk = open_disk(tmp_path)
    assert count_cached(run_jobs(core, make_short_job(PROMPT))["j"]) == 810
    assert count_cached(run_jobs(core, make_short_job([*PROMPT[:700], 5], owner="other"))["j"]) == 0
    core = build_disk_core(tmp_path, disk={"secret": b"other"})
    run_jobs(core, make_short_job(PROMPT[:700]))
    core.cache_manager.disk.disk = open_disk(tmp_path)
    assert count_cached(run_jobs(core, make_short_job(PROMPT))["j"]) == WHOLE


def test_prompt_logprobs_are_computed(tmp_path: Path) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    assert run_next_turn(tmp_path, prompt_logprobs=0) == 0


def test_continued_job_reuses_pages_of_its_generated_tokens(tmp_path: Path) -> None:
    first = join_tokens(run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT, max_tokens=200))["j"])
    job = make_short_job(PROMPT, generated=tuple(first[:150]), max_tokens=200)
    core = build_disk_core(tmp_path)
    assert len(core.cache_manager.disk.find(core.intake.build_sequence(job), 0)) * TOKENS_PER_PAGE == 1024
    chunks = run_and_stop(core, job)["j"]
    assert count_cached(chunks) == len(PROMPT), "generated tokens are none of the prompt's"
    assert join_tokens(chunks) == first[150:]


def test_running_jobs_are_kept_at_a_stop(tmp_path: Path) -> None:
    core = build_disk_core(tmp_path)
    core.add(make_short_job(PROMPT, max_tokens=500))
    while not core.stats().generated_tokens:
        core.step()
    core.close(30.0)
    assert run_next_turn(tmp_path) == WHOLE


def test_pages_before_the_first_picture_are_kept(tmp_path: Path) -> None:
    """A job with pictures needs a tower, so the disk is asked itself."""
    core = build_disk_core(tmp_path)
    run_jobs(core, make_short_job(PROMPT))
    manager = core.cache_manager
    (entry,) = manager.prefix_cache.entries
    span = MediaSpan(key=bytes(32), offset=600, length=40, rows=40)
    sequence = core.intake.build_sequence(make_short_job(PROMPT))
    sequence.job = make_short_job(PROMPT, media=(span,), owner="seer")
    manager.disk.offer(sequence, entry.cache, 900)
    core.close(30.0)
    assert core.stats().disk_pages_written == 14 + 9
    assert len(build_disk_core(tmp_path).cache_manager.disk.find(sequence, 0)) == 9


def test_beginning_of_a_prompt_outlives_its_end(tmp_path: Path) -> None:
    """The names of pages in the order of their last use: what the memory serves counts as used on disk."""

    def list_by_use(prompt: list[int]) -> list[int]:
        names = [path.name for path in sorted(list_page_files(tmp_path), key=lambda path: -path.stat().st_mtime_ns)]
        core = build_disk_core(tmp_path)
        pages = core.cache_manager.disk.find(core.intake.build_sequence(make_short_job(prompt)), 0)
        return [names.index(page.name) for page in pages]

    core = build_disk_core(tmp_path)
    other = make_tokens(300, 1)
    run_jobs(core, make_short_job(PROMPT), make_short_job(other, "other"))
    assert core.cache_manager.disk.disk is not None and core.cache_manager.disk.disk.writer.flush(30.0)
    assert list_by_use(PROMPT) == sorted(list_by_use(PROMPT)) and list_by_use(other) == sorted(list_by_use(other))
    for prompt, num_pages in ((PROMPT, 14), (other, 4), (PROMPT, 14)):
        run_jobs(core, make_short_job(prompt))
        assert core.cache_manager.disk.disk.writer.flush(30.0)
        assert list_by_use(prompt) == list(range(num_pages))
    core.close(30.0)


# Damage


@pytest.mark.parametrize("index", [0, 1, 7, 13])
def test_damaged_page_ends_the_prefix_and_is_written_again(
    tmp_path: Path, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    disk, core = open_disk(tmp_path), build_disk_core(tmp_path)
    sequence = core.intake.build_sequence(make_short_job(PROMPT))
    pages = core.cache_manager.disk.find(sequence, 0)
    path = tmp_path / pages[index].name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    chunks = run_and_stop(core, make_short_job(PROMPT, max_tokens=8))["j"]
    assert count_cached(chunks) == TOKENS_PER_PAGE * index and join_tokens(chunks) == expect_tokens(
        make_short_job(PROMPT, max_tokens=8)
    )
    assert core.stats().disk_pages_damaged == 1 and caplog.text.count("was damaged") == 1
    assert run_next_turn(tmp_path) == WHOLE
    assert disk.num_damaged == 0


def test_no_damage_changes_a_token(tmp_path: Path) -> None:
    """Each start finds pages with random faults, and pages of other prompts and owners under their names."""
    source = random.Random(3)
    other = {"owner": "other"}
    run_and_stop(build_disk_core(tmp_path), make_short_job(make_tokens(900, 1), **other))
    foreign = [path.read_bytes() for path in list_page_files(tmp_path)]
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    expected, num_damaged = expect_tokens(make_short_job(PROMPT, max_tokens=4)), 0
    for _ in range(NUM_DAMAGED_STARTS):
        for path in list_page_files(tmp_path):
            if source.random() < 0.15:
                content = path.read_bytes()
                path.write_bytes(source.choice(foreign) if source.random() < 0.3 else damage(content, source))
        core = build_disk_core(tmp_path)
        assert join_tokens(run_and_stop(core, make_short_job(PROMPT, max_tokens=4))["j"]) == expected
        num_damaged += core.stats().disk_pages_damaged
    assert num_damaged > NUM_DAMAGED_STARTS / 4


def test_page_that_another_process_deletes_is_computed(tmp_path: Path) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    core = build_disk_core(tmp_path)
    for path in list_page_files(tmp_path):
        path.unlink()
    chunks = run_and_stop(core, make_short_job(PROMPT))["j"]
    assert count_cached(chunks) == 0 and core.stats().disk_pages_damaged == 0


def test_full_disk_ends_the_writing_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PageFolder, "_make_room", fail)
    core = build_disk_core(tmp_path)
    for start in range(3):
        prompt = make_tokens(600, start)
        job = make_short_job(prompt, str(start), max_tokens=4)
        assert join_tokens(run_jobs(core, job)[str(start)]) == expect_tokens(job)
        assert core.cache_manager.disk.disk is not None and core.cache_manager.disk.disk.writer.flush(30.0)
    core.close(1.0)
    assert not list_page_files(tmp_path) and core.stats().disk_pages_written == 0
    assert len(caplog.records) == 1 and "No space left" in caplog.text and "no longer written" in caplog.text


# Threads and memory


def stop_reading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes every load wait for the event that is returned."""
    may_read = threading.Event()
    read = loading.PageLoader._read_pages

    def wait_and_read(self: loading.PageLoader, load: loading.PageLoad) -> None:
        may_read.wait(30.0)
        read(self, load)

    monkeypatch.setattr(loading.PageLoader, "_read_pages", wait_and_read)
    return may_read


def step_until(core: Core, name: str) -> None:
    while not any(job == name for job, _ in core.step()):
        pass


def test_other_streams_continue_while_pages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    may_read = stop_reading(monkeypatch)
    core = build_disk_core(tmp_path)
    core.add(make_short_job(PROMPT, "reads"))
    assert core.step() == [] and core.has_work
    core.add(make_short_job(make_tokens(40, 5), "goes on", max_tokens=5))
    step_until(core, "goes on")
    core.add(make_short_job([*PROMPT, 7], "waits for the same"))
    step_until(core, "goes on")
    assert core.stats().waiting == 2
    may_read.set()
    chunks = run_jobs(core)
    assert count_cached(chunks["reads"]) == WHOLE <= count_cached(chunks["waits for the same"])
    assert core.stats().disk_hit_tokens == WHOLE, "the pages are read once"
    core.close(30.0)


def test_job_that_is_cancelled_while_pages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    may_read = stop_reading(monkeypatch)
    core = build_disk_core(tmp_path)
    core.add(make_short_job(PROMPT))
    core.step()
    core.cancel("j")
    assert [chunk.finish for _, chunk in core.step()] == ["cancelled"] and not core.has_work
    may_read.set()
    assert join_tokens(run_jobs(core, make_short_job(PROMPT, max_tokens=4))["j"]) == expect_tokens(
        make_short_job(PROMPT, max_tokens=4)
    )
    core.close(30.0)


def test_disk_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    may_read = stop_reading(monkeypatch)
    monkeypatch.setattr(disk_prefixes, "LOAD_TIMEOUT_S", 0.1)
    core = build_disk_core(tmp_path)
    assert count_cached(run_jobs(core, make_short_job(PROMPT))["j"]) == 0
    assert "no longer read" in caplog.text
    may_read.set()
    core.close(30.0)


def test_prefix_that_does_not_fit_into_the_cache_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    stop_reading(monkeypatch)
    core = build_disk_core(tmp_path, max_cache_tokens=1200)
    core.add(make_short_job(make_tokens(400, 5), "runs", max_tokens=50))
    step_until(core, "runs")
    core.add(make_short_job(PROMPT))
    core.step()
    assert core.cache_manager.disk.num_loading_tokens == 0


def test_memory_of_a_prefix_that_is_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_stop(build_disk_core(tmp_path), make_short_job(PROMPT))
    may_read = stop_reading(monkeypatch)
    core = build_disk_core(tmp_path, max_cache_tokens=1200)
    run_jobs(core, make_short_job(make_tokens(500, 5), "idle"))
    core.add(make_short_job(PROMPT))
    core.step()
    manager = core.cache_manager
    assert manager.disk.num_loading_tokens >= 900
    assert manager.prefix_cache.capacity_tokens + manager.disk.num_loading_tokens <= 1200
    core.add(make_short_job(make_tokens(400, 9), "waits"))
    assert core.step() == [] or core.stats().running == 1, "a job that runs alone is admitted"
    may_read.set()
    run_jobs(core)
    core.close(30.0)


def test_cache_that_another_prompt_takes_over_is_not_written_under_the_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is held until the second prompt has replaced the end of the first one's cache."""
    may_copy = threading.Event()
    copy = writer.PageWriter._run
    monkeypatch.setattr(writer.PageWriter, "_run", lambda self: may_copy.wait(30.0) and copy(self))
    core = build_disk_core(tmp_path)
    first = make_tokens(1024)
    second = [*first[:1000], *make_tokens(200, 4)]
    run_jobs(core, make_short_job(first, max_tokens=2))
    assert count_cached(run_jobs(core, make_short_job(second, max_tokens=2))["j"]) >= 1000, "it takes the cache over"
    may_copy.set()
    core.close(30.0)
    for prompt in (first, second):
        assert run_next_turn(tmp_path, [*prompt, 5]) >= WHOLE


def test_evicted_caches_are_not_kept_alive_by_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_copy = threading.Event()
    copy = writer.PageWriter._run
    monkeypatch.setattr(writer.PageWriter, "_run", lambda self: may_copy.wait(30.0) and copy(self))
    core = build_disk_core(tmp_path)
    run_jobs(core, make_short_job(PROMPT))
    core.cache_manager.prefix_cache.evict_to(0)
    core.cache_manager.disk.discard()
    may_copy.set()
    core.close(30.0)
    assert not list_page_files(tmp_path)


@pytest.mark.parametrize("limit", [100_000, 15_000])
def test_random_conversations_over_restarts_get_their_own_tokens(tmp_path: Path, limit: int) -> None:
    """Memory and disk are short: caches are taken over, evicted and written at once, and pages are deleted."""
    source = random.Random(limit)
    texts = {owner: [make_tokens(1500, 3 * index + 1) for index in range(2)] for owner in ("a", "b")}
    num_hits = 0
    for _ in range(NUM_RANDOM_STARTS):
        core = build_disk_core(tmp_path, disk={"limit": limit}, max_cache_tokens=3500, max_num_seqs=3)
        for _ in range(3):
            jobs = []
            for name in ("0", "1", "2"):
                owner = source.choice("ab")
                text = source.choice(texts[owner])
                cut = source.randrange(200, len(text))
                tail = make_tokens(source.randrange(1, 400), source.randrange(40))
                texts[owner].append([*text[:cut], *tail][:1800])
                jobs.append(make_short_job(texts[owner][-1], name, owner=owner))
            chunks = run_jobs(core, *jobs)
            for job in jobs:
                assert join_tokens(chunks[job.id]) == expect_tokens(job)
        core.close(source.choice([0.0, 30.0]))
        stats = core.stats()
        num_hits += stats.disk_hit_tokens
        assert stats.disk_pages_damaged == 0 and sum(path.stat().st_size for path in list_page_files(tmp_path)) <= limit
    assert num_hits
