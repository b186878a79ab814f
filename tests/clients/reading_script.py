"""A script for agents that read twenty files one after the other. Their conversations are compacted on the way.

Each file names the next one by its number. The last reply needs a word of the first message, a number of the last
file, and the second summary or a later one. No summary repeats the word.
"""

from typing import Any

from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.protocol import EngineInfo
from tests.serving import scripted_registry
from tests.snapshots.builtin_cases import write_call

CONTEXT = 100_000
"""Context window in tokens, each of which is a byte."""
THRESHOLD = CONTEXT // 10
NUM_FILES = 20
NUM_COMPACTIONS = 3
NUM_SUMMARIES = 5
"""Number of different summaries, more than there are compactions."""
ASKED = "about to be cut short"
"""Part of the request for a summary."""
PROMPT = "Read file-01.txt and all that follow it. The word is zebra. What are the word and the number?"
ANSWER = "The word is zebra, and the number is 41."
FOLLOW_UP = "Say the word again."
AGAIN = "Zebra."
FILES = {
    f"file-{number:02}.txt": f"[page {number:02}] {'Nothing but words. ' * 75}"
    f"{'The number is 41.' if number == NUM_FILES else 'See the next file.'}"
    for number in range(1, NUM_FILES + 1)
}
SCRIPT: list[dict[str, Any]] = [
    *(
        {
            "name": f"summary {number}",
            "when": [ASKED, f"Summary {number - 1}."] if number > 1 else [ASKED],
            "output": [f"<think>\nWhat matters?\n</think>\n\nSummary {number}.", " Some files were read.\n"],
            "tokens_per_chunk": 0,
        }
        for number in range(NUM_SUMMARIES, 0, -1)
    ),
    {"name": "again", "when": [FOLLOW_UP, "The word is zebra.", "Summary "], "output": [AGAIN]},
    *(
        {
            "name": f"answer {number}",
            "when": ["The word is zebra.", "The number is 41.", f"Summary {number}."],
            "output": [ANSWER],
        }
        for number in range(2, NUM_SUMMARIES + 1)
    ),
    {
        "name": "lost",
        "when": [f"[page {NUM_FILES}]"],
        "output": ["The prompt lacks the word, the number or a summary."],
    },
    *(
        {
            "name": f"page {number}",
            "when": [f"[page {number:02}]"],
            "output": ["I go on.\n\n", write_call("read_file", {"path": f"file-{number + 1:02}.txt"})],
            "tokens_per_chunk": 0,
        }
        for number in range(NUM_FILES - 1, 0, -1)
    ),
    {"name": "first", "when": [PROMPT], "output": [write_call("read_file", {"path": "file-01.txt"})]},
    {"name": "unknown", "output": ["The prompt lacks everything."]},
]
TASK = {
    "model": "scripted",
    "prompt": PROMPT,
    "follow_up": FOLLOW_UP,
    "files": FILES,
    "threshold": THRESHOLD,
}


def make_reading_registry() -> ModelRegistry:
    """Returns a model with that script and context window."""
    info = EngineInfo(max_model_len=CONTEXT, vocab_size=262_144, device="none")
    return scripted_registry(SCRIPT, info=info)
