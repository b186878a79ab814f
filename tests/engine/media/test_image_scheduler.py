"""Pictures of sequences that come, go and come again while the encoder is at work on another thread."""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.engine.forward.pictures import ImageFeatures
from antiphon.engine.media import image_scheduler as scheduler_module
from antiphon.engine.media.image_scheduler import ImageScheduler
from antiphon.engine.media.sequence_pictures import SequencePictures
from antiphon.engine.media_messages import MediaArrays, MediaSpan
from tests.progress import HANG_TIMEOUT_S, wait_with_progress

SPAN = MediaSpan(key=b"k" * 32, offset=2, length=4, rows=4)
ARRAYS = {"pixel_values": torch.zeros(1)}


class GatedEncoder:
    """Encodes in two blocks, before the second of which it waits until the test opens the gate."""

    def __init__(self) -> None:
        self.between_blocks = lambda: None
        self.has_begun, self.gate = threading.Event(), threading.Event()
        self.encoded: list[dict[str, Any]] = []

    def encode(self, arrays: dict[str, Any], rows: int) -> ImageFeatures:
        self.encoded.append(arrays)
        self.has_begun.set()
        assert self.gate.wait(HANG_TIMEOUT_S)
        self.between_blocks()
        return ImageFeatures(torch.zeros(rows, 4), (), tuple, False)


@pytest.fixture
def encoder() -> GatedEncoder:
    return GatedEncoder()


@pytest.fixture
def scheduler(encoder: Any, monkeypatch: pytest.MonkeyPatch) -> ImageScheduler:
    monkeypatch.setattr(scheduler_module, "counts_in_grids", lambda model: False)
    model: Any = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    return ImageScheduler(model, encoder, soft_ids=[9], two_way=False, alignment=1, max_bytes=1 << 20)


def make_user(name: str) -> Any:
    job: Any = SimpleNamespace(
        id=name, owner="o", cache_salt="", media=(SPAN,), tokens=(1, 2, 9, 9, 9, 9, 3), priority=0
    )
    is_soft = np.array([token == 9 for token in job.tokens])
    pictures = SequencePictures(job, is_soft, None, two_way=False)
    return SimpleNamespace(job=job, pictures=pictures, num_computed_tokens=0, queue_rank=(0, 1))


def begin_encoding(scheduler: ImageScheduler, encoder: GatedEncoder, name: str) -> Any:
    user = make_user(name)
    assert not scheduler.update([user])
    assert scheduler.take_requests() == [(name, SPAN.key)]
    scheduler.provide_tensors(name, SPAN.key, ARRAYS)
    assert not scheduler.update([user])
    assert encoder.has_begun.wait(HANG_TIMEOUT_S)
    return user


def cancel_and_ask_again(scheduler: ImageScheduler, encoder: GatedEncoder) -> Any:
    """Returns a sequence that asks for the picture whose encoding was cancelled, and still runs."""
    first = begin_encoding(scheduler, encoder, "first")
    scheduler.release(first)
    assert not scheduler.update([])
    second = make_user("second")
    assert not scheduler.update([second])
    assert scheduler.take_requests() == [("second", SPAN.key)]
    return second


def wait_for_old_task(scheduler: ImageScheduler) -> None:
    wait_with_progress(
        lambda: scheduler._thread is not None and scheduler._thread._result is not None, "the old task has ended"
    )


def wait_for_features(scheduler: ImageScheduler, user: Any) -> None:
    wait_with_progress(
        lambda: scheduler.update([user]) or user.pictures.features[0] is not None, "the picture is encoded"
    )
    assert user.pictures.features[0] is not None


@pytest.mark.parametrize("answer_first", [True, False])
def test_a_cancelled_encoding_takes_no_later_request_with_it(
    scheduler: ImageScheduler, encoder: GatedEncoder, answer_first: bool
) -> None:
    second = cancel_and_ask_again(scheduler, encoder)
    if answer_first:
        scheduler.provide_tensors("second", SPAN.key, ARRAYS)
    encoder.gate.set()
    wait_for_old_task(scheduler)
    assert not scheduler.update([second])
    if not answer_first:
        scheduler.provide_tensors("second", SPAN.key, ARRAYS)
    wait_for_features(scheduler, second)
    assert scheduler.take_requests() == [], "it is not asked for a third time"
    assert len(encoder.encoded) == 2


def test_the_answer_that_a_picture_is_gone_may_come_after_a_cancelled_encoding(
    scheduler: ImageScheduler, encoder: GatedEncoder
) -> None:
    second = cancel_and_ask_again(scheduler, encoder)
    encoder.gate.set()
    wait_for_old_task(scheduler)
    assert not scheduler.update([second])
    scheduler.refuse("second", SPAN.key, "the picture is gone")
    [(failed, fault)] = scheduler.update([second])
    assert failed is second
    assert fault.code == "media_unavailable"


def test_arrays_of_one_job_that_are_invalid_end_no_other_job(scheduler: ImageScheduler, encoder: GatedEncoder) -> None:
    encoder.gate.set()
    bad, good = make_user("bad"), make_user("good")
    assert not scheduler.update([bad, good])
    assert scheduler.take_requests() == [("bad", SPAN.key)]
    scheduler.provide("bad", SPAN.key, MediaArrays(arrays=(), size=0, descriptor=-1))
    assert [user.job.id for user, _ in scheduler.update([bad, good])] == ["bad"]
    assert scheduler.take_requests() == [("good", SPAN.key)]
    scheduler.provide_tensors("good", SPAN.key, ARRAYS)
    wait_for_features(scheduler, good)
    assert encoder.encoded == [ARRAYS]


def test_answers_to_requests_that_nobody_made_are_ignored(scheduler: ImageScheduler) -> None:
    scheduler.provide_tensors("other", SPAN.key, ARRAYS)
    scheduler.refuse("other", SPAN.key, "gone")
    assert not scheduler.update([])
