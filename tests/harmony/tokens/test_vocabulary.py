"""The vocabulary of a `tokenizer.json` in a server with other work to do."""

import threading
import time

from tokenizers import Tokenizer

from antiphon.engine.embedded import MODEL_DIR
from antiphon.harmony.tokens.vocabulary import TokenizerVocabulary
from tests.progress import HANG_TIMEOUT_S


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """A prompt of megabytes takes seconds. If it kept the interpreter's lock, no stream would continue meanwhile."""
    vocabulary = TokenizerVocabulary(Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json")))
    lengths: list[int] = []
    thread = threading.Thread(target=lambda: lengths.append(len(vocabulary.encode("word " * 100_000))))
    ticks, start_s = 0, time.monotonic()
    thread.start()
    while thread.is_alive() and time.monotonic() - start_s < HANG_TIMEOUT_S:
        time.sleep(0.005)
        ticks += 1
    assert lengths and lengths[0] >= 100_000
    assert ticks > 10


def test_encoding_is_that_of_the_library() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    for text in ("", "a", "Zażółć\n\n gęślą", "<|im_start|>user\nHi<|im_end|>\n", "word " * 1000):
        for special in (False, True):
            ids = TokenizerVocabulary(tokenizer).encode(text, add_special_tokens=special)
            assert ids == tokenizer.encode(text, add_special_tokens=special).ids
