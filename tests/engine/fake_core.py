"""A core without torch, so that a worker process starts at once, and whose jobs can crash or hang it.

It generates "a" once a step for every job that has a slot. A job whose prompt contains a marker of `FAULTS_BY_MARKER`
triggers that fault in the step after `TOKENS_BEFORE_FAULT` tokens.
"""

import logging
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk

STEP_SECONDS = 0.002
"""Duration of a step."""

OUTPUT_TOKEN = ord("a")
"""The only token that `FakeCore` generates."""
TOKENS_BEFORE_FAULT = 2


def _raise(error: Exception) -> None:
    raise error


FAULTS_BY_MARKER: dict[bytes, Callable[[], object]] = {
    b"HANG": lambda: time.sleep(1e6),
    b"SLOW": lambda: time.sleep(0.5),
    b"KILLED": lambda: os.kill(os.getpid(), signal.SIGKILL),
    b"SEGFAULT": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"EXIT": lambda: os._exit(3),
    b"MEMORY": lambda: _raise(MemoryError("no room for 1 GiB")),
    b"BUG": lambda: _raise(ZeroDivisionError("division by zero")),
}
"""Faults by the text in a prompt that triggers them."""


class FakeCore:
    """Keeps the statistics of a real core. After a job whose prompt contains POISON, every step fails."""

    step_seconds = STEP_SECONDS

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self.info = EngineInfo(max_model_len=100_000, vocab_size=100_000, description="fake core")
        self._max_num_seqs, self._max_waiting = max_num_seqs, max_waiting
        self._jobs: dict[str, Job] = {}
        self._token_counts: dict[str, int] = {}
        self._outbox: list[JobChunk] = []
        self._generated = self._faults = self._steps = self._finished = 0
        self._poisoned = False

    @property
    def has_work(self) -> bool:
        return bool(self._jobs or self._outbox)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._token_counts),
            waiting=len(self._jobs) - len(self._token_counts),
            max_num_seqs=self._max_num_seqs,
            running_cache_tokens=sum(self._token_counts.values()),
            steps=self._steps,
            generated_tokens=self._generated,
            finished_jobs=self._finished,
            failed_jobs=self._faults,
        )

    def add(self, job: Job) -> None:
        if b"REFUSED" in bytes(token for token in job.tokens if token < 256):
            raise EngineError("grammar_unsupported", "unsupported")
        if len(self._jobs) >= self._max_num_seqs + self._max_waiting:
            raise EngineError("server_is_overloaded", "full", retryable=True)
        self._jobs[job.id] = job

    def cancel(self, job_id: str) -> None:
        if job_id in self._jobs:
            self._finish(job_id, Chunk(finish="cancelled"))

    def step(self) -> list[JobChunk]:
        for job_id in self._jobs:
            if job_id not in self._token_counts and len(self._token_counts) < self._max_num_seqs:
                self._token_counts[job_id] = len(self._jobs[job_id].generated or ())
                self._outbox.append((job_id, Chunk()))
        if not self._outbox:
            self._generate_step()
        chunks, self._outbox = self._outbox, []
        return chunks

    def _generate_step(self) -> None:
        time.sleep(self.step_seconds)
        self._steps += 1
        for job_id, count in list(self._token_counts.items()):
            job = self._jobs[job_id]
            prompt = bytes(token for token in job.tokens if token < 256)
            self._poisoned |= b"POISON" in prompt
            if self._poisoned:
                self._finish(
                    job_id,
                    Chunk(finish="error", fault=Fault("server_error", "the model failed in this step", retryable=True)),
                )
                continue
            if count == TOKENS_BEFORE_FAULT:
                for marker, trigger_fault in FAULTS_BY_MARKER.items():
                    if marker in prompt:
                        trigger_fault()
            token = self._choose_token(prompt, count)
            self._token_counts[job_id] += 1
            self._generated += 1
            if self._token_counts[job_id] == job.sampling.max_tokens:
                self._finish(job_id, Chunk(tokens=(token,), finish="length"))
            else:
                self._outbox.append((job_id, Chunk(tokens=(token,))))

    def _choose_token(self, prompt: bytes, place: int) -> int:
        return OUTPUT_TOKEN

    def _finish(self, job_id: str, chunk: Chunk) -> None:
        del self._jobs[job_id]
        self._token_counts.pop(job_id, None)
        self._finished += 1
        self._faults += chunk.finish == "error"
        self._outbox.append((job_id, chunk))


class VaryingCore(FakeCore):
    """Generates letters that depend on the prompt and the place. It refuses to continue after others than its own."""

    step_seconds = 0.01
    """Long enough that many streams have begun before the first one ends."""

    def add(self, job: Job) -> None:
        prompt = bytes(token for token in job.tokens if token < 256)
        if any(token != self._choose_token(prompt, place) for place, token in enumerate(job.generated or ())):
            raise EngineError("invalid_request", "the tokens of the earlier run are not those that it generated")
        super().add(job)

    def _choose_token(self, prompt: bytes, place: int) -> int:
        return ord("a") + zlib.crc32(b"%b %d" % (prompt, place)) % 26


def build_fake_core(folder: Path, options: EngineOptions) -> FakeCore:
    """A core factory. A file `refuse` in the folder makes it raise the file's text. It waits while `slow` exists."""
    if (folder / "refuse").exists():
        raise LoadError((folder / "refuse").read_text(encoding="utf-8"))
    if (folder / "slow").exists():
        logging.getLogger("antiphon.engine.fake_core").info("packing weights")
        while (folder / "slow").exists():
            time.sleep(0.01)
    return FakeCore(options.max_num_seqs, options.max_waiting)


def build_varying_core(folder: Path, options: EngineOptions) -> VaryingCore:
    """A core factory."""
    return VaryingCore(options.max_num_seqs, options.max_waiting)


def build_byte_model_core(folder: Path, options: EngineOptions) -> Any:
    """A core factory: a real core with a tiny random model whose vocabulary is bytes and a few markers."""
    import torch
    import transformers

    from antiphon.engine.builder import build_core_from_model

    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 265, "eos_token_id": 264}
    config = transformers.LlamaConfig(**sizes, **shape)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    return build_core_from_model(model.eval(), options=options)
