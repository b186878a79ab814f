"""An encoder's core without torch, so that a worker process starts at once, and whose inputs can crash or hang it."""

import os
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from antiphon.engine.embeddings.core import EncoderCore
from antiphon.engine.encoder_messages import EncoderInput, VectorOptions
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo

KILL_TOKEN, FAIL_TOKEN, SLOW_TOKEN = 90, 91, 92
VECTOR_SIZE = 4


class CountedPasses:
    """Encodes an input as its number of tokens, four times. Counts its passes in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "passes"

    def __call__(self, inputs: Sequence[EncoderInput], options: Sequence[VectorOptions]) -> list[bytes]:
        with self._file.open("a", encoding="ascii") as file:
            file.write("x" * len(inputs))
        tokens = {token for each in inputs for token in each.tokens}
        if KILL_TOKEN in tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAIL_TOKEN in tokens:
            raise ZeroDivisionError
        if SLOW_TOKEN in tokens:
            time.sleep(0.02)
        return [
            struct.pack("<f", len(each.tokens)) * (each_options.dimensions or VECTOR_SIZE)
            for each, each_options in zip(inputs, options, strict=True)
        ]


def build_fake_encoder(folder: Path, options: EngineOptions) -> EncoderCore:
    """A core factory. After a crash, it waits while the file `wait` exists in the folder."""
    while (folder / "passes").exists() and (folder / "wait").exists():
        time.sleep(0.01)
    info = EngineInfo(max_model_len=8, vocab_size=100, vector_size=VECTOR_SIZE)
    return EncoderCore(
        CountedPasses(folder), info, max_num_seqs=2, max_waiting=options.max_waiting, max_batched_tokens=16
    )
