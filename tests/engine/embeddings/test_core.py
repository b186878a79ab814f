"""Batching of the encoder's core, with a function in place of the model."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.engine.embeddings.core import EncoderCore
from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Job, JobChunk


class RecordedPasses(list[list[int]]):
    """Encodes each input as its first token. Records the lengths of each pass. A token 99 fails the pass."""

    def __call__(self, inputs: Sequence[EncoderInput], _: Sequence[VectorOptions]) -> list[bytes]:
        self.append([len(each.tokens) for each in inputs])
        if any(99 in each.tokens for each in inputs):
            raise ZeroDivisionError
        return [struct.pack("<f", each.tokens[0]) for each in inputs]


def make_core(passes: RecordedPasses, **limits: int) -> EncoderCore:
    info = EngineInfo(max_model_len=50, vocab_size=100)
    return EncoderCore(passes, info, **{"max_num_seqs": 2, "max_waiting": 2, "max_batched_tokens": 20, **limits})


def make_job(name: str, lengths: Sequence[int], token: int = 1) -> Job:
    inputs = tuple(EncoderInput((token + index, *([0] * (length - 1)))) for index, length in enumerate(lengths))
    return Job(id=name, tokens=(), encoder_inputs=inputs)


def run_all(core: EncoderCore) -> list[JobChunk]:
    chunks: list[JobChunk] = []
    while core.has_work:
        chunks += core.step()
    return chunks


def vectors_of(chunks: list[JobChunk], name: str) -> dict[int, float]:
    return {
        index: struct.unpack("<f", vector)[0] for job, chunk in chunks if job == name for index, vector in chunk.vectors
    }


def test_passes_are_sorted_by_length_and_bounded() -> None:
    passes = RecordedPasses()
    core = make_core(passes)
    lengths = [3, 9, 4, 10, 2, 5, 30, 1]
    core.add(make_job("a", lengths))
    chunks = run_all(core)
    assert passes == [[30], [10, 9], [5, 4, 3, 2], [1]]
    assert chunks[0] == ("a", Chunk())
    assert [chunk.finish for _, chunk in chunks] == [None, None, None, None, "stop"]
    assert vectors_of(chunks, "a") == {index: index + 1 for index in range(len(lengths))}


def test_short_jobs_share_a_pass_and_do_not_wait_for_a_long_one() -> None:
    passes = RecordedPasses()
    core = make_core(passes, max_batched_tokens=40)
    core.add(make_job("long", [10] * 9))
    core.add(make_job("one", [8]))
    core.add(make_job("two", [7]))
    assert core.step() == [(name, Chunk()) for name in ("long", "one", "two")] and not passes
    core.step()
    chunks = core.step()
    assert passes == [[10] * 4, [8, 7]]
    assert [name for name, chunk in chunks if chunk.finish == "stop"] == ["one", "two"]


def test_much_shorter_input_of_another_job_is_not_padded() -> None:
    passes = RecordedPasses()
    core = make_core(passes, max_batched_tokens=40)
    core.add(make_job("a", [10]))
    core.add(make_job("b", [5]))
    core.add(make_job("c", [4]))
    run_all(core)
    assert passes == [[10, 5], [4]]


def test_cancelled_job_is_not_computed() -> None:
    passes = RecordedPasses()
    core = make_core(passes)
    core.add(make_job("a", [10] * 6))
    core.step()
    core.step()
    core.cancel("a")
    core.cancel("unknown")
    assert [(name, chunk.finish) for name, chunk in run_all(core)] == [("a", "cancelled")]
    assert len(passes) == 1


def test_failed_pass_ends_its_jobs_only() -> None:
    passes = RecordedPasses()
    core = make_core(passes)
    core.add(make_job("bad", [10, 2], token=98))
    core.add(make_job("good", [4]))
    ends = {name: chunk for name, chunk in run_all(core) if chunk.finish}
    assert ends["bad"].fault is not None and ends["bad"].fault.code == "server_error"
    assert ends["good"].finish == "stop"
    assert (core.stats().failed_jobs, core.stats().finished_jobs) == (1, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lengths": []}, "invalid_request"),
        ({"lengths": [2, 51]}, "context_length_exceeded"),
        ({"lengths": [2], "token": 100}, "invalid_request"),
    ],
)
def test_unusable_job_is_rejected(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError) as caught:
        make_core(RecordedPasses()).add(make_job("a", **fields))
    assert caught.value.code == code


def test_jobs_beyond_the_capacity_are_rejected() -> None:
    core = make_core(RecordedPasses())
    for number in range(4):
        core.add(make_job(str(number), [1]))
    with pytest.raises(EngineError) as caught:
        core.add(make_job("4", [1]))
    assert caught.value.code == "server_is_overloaded"
