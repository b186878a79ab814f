"""Checks of the pictures of a family, however its jobs are batched, cut, cached, preempted and drafted.

Each check compares greedy output with that of transformers' `generate`. It raises `AssertionError` if they differ, or
if what it is about did not happen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.drafts.ngram import Drafter
from antiphon.engine.scheduler.sequence import Sequence
from tests.engine.media.picture_families import (
    NUM_TOKENS,
    Prompt,
    draw_picture,
    join_output,
    make_picture_job,
    make_prompt,
    make_prompts,
    run_picture_jobs,
)

TWO_WAY = {"gemma3", "gemma4_two_way"}
"""Families whose pictures are computed as a whole: no prefix ends inside of one."""
RECURRENT = {"qwen3_5", "qwen3_5_moe"}
"""Families of which only snapshots are reused."""


class PictureCase:
    """A family's model. `build` returns a core with these options, `generate` the output of transformers."""

    def __init__(self, name: str, build: Callable[..., Core], generate: Callable[[Prompt], list[int]]) -> None:
        self.name = name
        self.build = build
        self.prompts = make_prompts(name)
        self._generate = generate
        self._expected: dict[tuple[Any, ...], list[int]] = {}

    def expect(self, prompt: Prompt) -> list[int]:
        """Returns what `generate` appends to a prompt."""
        key = (*prompt.tokens, *(span.key for span in prompt.spans))
        if key not in self._expected:
            self._expected[key] = self._generate(prompt)
        return self._expected[key]


def run_alone(core: Core, prompt: Prompt, name: str = "j", **options: Any) -> list[int]:
    """Returns the output of a job that nothing runs beside."""
    return run_counting(core, prompt, name, **options)[1]


def run_counting(core: Core, prompt: Prompt, name: str = "j", **options: Any) -> tuple[int, list[int]]:
    """Returns the number of tokens read from the prefix cache, and the output."""
    chunks = run_picture_jobs(core, [(make_picture_job(prompt, name, **options), prompt)])[name]
    return max(chunk.cached_tokens for chunk in chunks), join_output(chunks)


def _run_together(core: Core, case: PictureCase) -> None:
    jobs = [(make_picture_job(prompt, f"b{index}"), prompt) for index, prompt in enumerate(case.prompts)]
    together = run_picture_jobs(core, jobs)
    outputs = [join_output(together[f"b{index}"]) for index in range(len(jobs))]
    wrong = [index for index, prompt in enumerate(case.prompts) if outputs[index] != case.expect(prompt)]
    assert not wrong, f"{len(wrong)} of {len(jobs)} prompts differ"


def check_alone(case: PictureCase) -> None:
    """Checks prompts alone: a picture between texts, a text, a picture first."""
    core = case.build()
    for index, prompt in enumerate(case.prompts[:3]):
        assert run_alone(core, prompt, f"j{index}", owner=str(index)) == case.expect(prompt)


def check_together(case: PictureCase) -> None:
    """Checks eight prompts with 0 to 3 pictures at once; each of the four pictures is encoded once."""
    assert len({tuple(case.expect(prompt)) for prompt in case.prompts}) == len(case.prompts), "pictures matter"
    core = case.build()
    _run_together(core, case)
    stats = core.stats()
    assert stats.encoded_images == 4 and stats.feature_cache_hits > 0
    assert not stats.running and not core.scheduler.running


def check_cut(case: PictureCase) -> None:
    """Checks prompts that are cut every 9 tokens."""
    core = case.build(max_batched_tokens=9)
    for index, prompt in enumerate(case.prompts[4:]):
        assert run_alone(core, prompt, f"j{index}", owner=str(index)) == case.expect(prompt)


def check_prefixes(case: PictureCase) -> None:
    """Checks prompts after a prefix that ends before, after and inside a picture."""
    core = case.build()
    is_recurrent = case.name in RECURRENT
    picture, other = draw_picture(case.name, 5, 2), draw_picture(case.name, 6, 2)
    first = make_prompt(24, picture, 30)
    start, end = first.spans[0].offset, first.spans[0].end
    run_alone(core, first, "first")
    encoded = core.stats().encoded_images
    replaced = make_prompt(24, other, 30)
    cached, output = run_counting(core, replaced, "before")
    assert output == case.expect(replaced) and cached <= start
    assert cached > 0 or is_recurrent
    again = Prompt([*first.tokens[:-6], 7, 8, 9], first.pictures, first.spans)
    cached, output = run_counting(core, again, "after")
    assert output == case.expect(again)
    assert cached >= end or is_recurrent
    inside = Prompt(first.tokens[:end], first.pictures, first.spans)
    cached, output = run_counting(core, inside, "inside")
    # `generate` misplaces what it generates right after a picture at the very end; one token later it does not.
    longer = Prompt([*inside.tokens, output[0]], inside.pictures, inside.spans)
    assert output[0] == case.expect(inside)[0]
    assert output[1:] == case.expect(longer)[:-1]
    assert is_recurrent or cached == start if case.name in TWO_WAY else is_recurrent or start < cached < end
    assert core.stats().encoded_images == encoded + 1, "the features are still there"


def check_evicted(case: PictureCase) -> None:
    """Checks that pictures whose features were evicted are encoded again."""
    core = case.build(image_cache_mib=0, enable_prefix_caching=False)
    prompt = case.prompts[7]
    for index in range(2):
        assert run_alone(core, prompt, f"j{index}") == case.expect(prompt)
    assert (core.stats().encoded_images, core.stats().feature_cache_bytes) == (6, 0)


def check_preempted(case: PictureCase) -> None:
    """Checks sequences that lose their cache after some tokens, when there is room for half of them only."""
    core = case.build()
    scheduler, preempted = core.scheduler, []
    preempt = scheduler.preempt

    def halve_once() -> list[Sequence]:
        generated = [sequence.num_generated for sequence in scheduler.running]
        if not preempted and len(generated) > 1 and min(generated) >= NUM_TOKENS // 4:
            reserved = sum(sequence.reserved_tokens for sequence in scheduler.running)
            scheduler.max_cache_tokens = core.cache_manager.max_tokens = reserved // 2
        preempted.extend(found := preempt())
        return found

    with mock.patch.object(scheduler, "preempt", halve_once):
        _run_together(core, case)
    assert any(sequence.job.media for sequence in preempted)


def check_drafts(case: PictureCase) -> None:
    """Checks drafts that are right, and drafts with a wrong token at each third place; recurrent models get none."""
    core = case.build()
    for index, prompt in enumerate(case.prompts[4:]):
        with _draft(len(prompt.tokens), case.expect(prompt)) as lengths:
            assert run_alone(core, prompt, f"j{index}", owner=str(index)) == case.expect(prompt)
        assert sum(lengths) >= NUM_TOKENS // 2 if core.forward.supports_drafts else not lengths


@contextmanager
def _draft(num_prompt_tokens: int, output: list[int]) -> Iterator[list[int]]:
    """Drafts four tokens a step from what is expected. Yields the lengths of the drafts."""
    lengths: list[int] = []
    wrong = [token if index % 3 else token ^ 1 for index, token in enumerate(output)]

    def propose(_drafter: Drafter, tokens: Any, max_tokens: int) -> list[int]:
        start = len(tokens) - num_prompt_tokens
        draft = (output if len(lengths) % 2 else wrong)[start : start + min(4, max_tokens)]
        lengths.append(len(draft))
        return draft

    with mock.patch.multiple(Drafter, propose=propose, update=lambda *_: None):
        yield lengths


PICTURE_CHECKS: dict[str, Callable[[PictureCase], None]] = {
    "alone": check_alone,
    "together": check_together,
    "cut": check_cut,
    "prefixes": check_prefixes,
    "evicted": check_evicted,
    "preempted": check_preempted,
    "drafts": check_drafts,
}
