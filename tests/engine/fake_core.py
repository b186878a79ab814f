"""A core that needs no torch, so that a process with it is there at once; its jobs may bring any disaster upon it.

It says "a" once a step for every job that has a slot. A job whose prompt holds the name of a fate meets it in the step
after its second token.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Fault, Job, JobChunk

PACE = 0.002
SAID = ord("a")


def _raise(error: Exception) -> None:
    raise error


FATES: dict[bytes, Callable[[], object]] = {
    b"HANG": lambda: time.sleep(1e6),
    b"SLOW": lambda: time.sleep(0.5),
    b"KILLED": lambda: os.kill(os.getpid(), signal.SIGKILL),
    b"SEGFAULT": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"EXIT": lambda: os._exit(3),
    b"MEMORY": lambda: _raise(MemoryError("no room for 1 GiB")),
    b"BUG": lambda: _raise(ZeroDivisionError("division by zero")),
}


class Chatter:
    """Counts as a core does. After a job that says POISON, every step of the model fails."""

    def __init__(self, slots: int, queue: int) -> None:
        self.info = EngineInfo(max_model_len=100_000, vocab_size=100_000, description="chatter")
        self._slots, self._queue = slots, queue
        self._jobs: dict[str, Job] = {}
        self._said: dict[str, int] = {}
        self._outbox: list[JobChunk] = []
        self._generated = self._faults = self._steps = self._finished = 0
        self._poisoned = False

    @property
    def has_work(self) -> bool:
        return bool(self._jobs or self._outbox)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._said),
            waiting=len(self._jobs) - len(self._said),
            slots=self._slots,
            running_cache_tokens=sum(self._said.values()),
            steps=self._steps,
            generated_tokens=self._generated,
            finished_jobs=self._finished,
            failed_jobs=self._faults,
        )

    def add(self, job: Job) -> None:
        if b"REFUSED" in bytes(token for token in job.tokens if token < 256):
            raise EngineError("grammar_unsupported", "not here")
        if len(self._jobs) >= self._slots + self._queue:
            raise EngineError("server_is_overloaded", "full", retryable=True)
        self._jobs[job.id] = job

    def cancel(self, job_id: str) -> None:
        if job_id in self._jobs:
            self._end(job_id, Chunk(finish="cancelled"))

    def abort(self, fault: Fault) -> list[JobChunk]:
        for job_id in list(self._jobs):
            self._end(job_id, Chunk(finish="error", fault=fault))
        said, self._outbox = self._outbox, []
        return said

    def step(self) -> list[JobChunk]:
        for job_id in self._jobs:
            if job_id not in self._said and len(self._said) < self._slots:
                self._said[job_id] = 0
                self._outbox.append((job_id, Chunk()))
        if not self._outbox:
            self._talk()
        said, self._outbox = self._outbox, []
        return said

    def _talk(self) -> None:
        time.sleep(PACE)
        self._steps += 1
        for job_id, count in list(self._said.items()):
            job = self._jobs[job_id]
            prompt = bytes(token for token in job.tokens if token < 256)
            self._poisoned |= b"POISON" in prompt
            if self._poisoned:
                self._end(
                    job_id,
                    Chunk(finish="error", fault=Fault("server_error", "the model failed in this step", retryable=True)),
                )
                continue
            if count == 2:
                for name, fate in FATES.items():
                    if name in prompt:
                        fate()
            self._said[job_id] += 1
            self._generated += 1
            if self._said[job_id] == job.sampling.max_tokens:
                self._end(job_id, Chunk(tokens=(SAID,), finish="length"))
            else:
                self._outbox.append((job_id, Chunk(tokens=(SAID,))))

    def _end(self, job_id: str, chunk: Chunk) -> None:
        del self._jobs[job_id]
        self._said.pop(job_id, None)
        self._finished += 1
        self._faults += chunk.finish == "error"
        self._outbox.append((job_id, chunk))


def chatter(folder: Path, options: EngineOptions) -> Chatter:
    """A core factory. A file ``refuse`` in the folder makes it fail with the file's text; while ``slow`` exists, it waits."""
    if (folder / "refuse").exists():
        raise LoadError((folder / "refuse").read_text(encoding="utf-8"))
    if (folder / "slow").exists():
        logging.getLogger("antiphon.engine.fake_core").info("packing weights")
        while (folder / "slow").exists():
            time.sleep(0.01)
    return Chatter(options.max_num_seqs, options.max_waiting)


def tiny(folder: Path, options: EngineOptions) -> Any:
    """A core factory: a real core with a tiny random model, over bytes and a few markers."""
    import torch
    import transformers

    from antiphon.engine.builder import build_core_from_model

    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 265, "eos_token_id": 264}
    config = transformers.LlamaConfig(**sizes, **heads)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    return build_core_from_model(model.eval(), options=options)
