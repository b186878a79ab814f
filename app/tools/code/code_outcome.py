"""Limits of the containers of `code_interpreter`, and the outcome of one run."""

from msgspec import Struct

MAX_TRACEBACK_BYTES = 8 * 1024
"""Tracebacks quote lines of the code, which have any length."""


class CodeLimits(Struct, frozen=True, kw_only=True):
    """Limits of the containers and of one run."""

    run_timeout_s: float = 10.0
    """Time of one run, with its sleeps."""
    grace_timeout_s: float = 2.0
    """Time after it in which the interpreter ends the run itself. Then its process is killed."""
    idle_timeout_s: float = 1200.0
    """Time after its last run in which a container keeps its variables."""
    process_idle_timeout_s: float = 60.0
    """Time after its last run in which a container keeps its process. Then its variables are kept as bytes."""
    memory_bytes: int = 128 << 20
    recursion_depth: int = 500
    log_bytes: int = 64 * 1024
    """The part of a run's output that is shown."""
    saved_bytes: int = 1 << 20
    """Of the variables of a container without a process. Larger ones are dropped, and its next run says so."""
    containers: int = 64
    containers_of_owner: int = 16
    concurrent_runs: int = 4


class CodeOutcome(Struct, frozen=True, kw_only=True):
    """The output of one run: what it printed, the value of its last expression, the traceback of its exception.

    `error` is one sentence if the sandbox ended the run or could not run it. An exception of the code is no error.
    """

    logs: str
    error: str | None = None

    def as_text(self) -> str:
        """Returns what the model reads."""
        return "\n".join(part for part in (self.logs, self.error) if part)


def join_logs(note: str, output: str, traceback: str, max_bytes: int) -> str:
    """Returns what a run has said, cut to a size in UTF-8. The note comes first, the traceback last."""
    traceback = _cut_bytes(traceback, MAX_TRACEBACK_BYTES)
    output = note + _cut_bytes(output, max_bytes - len(traceback.encode()) - len(note))
    separator = "\n" if output and traceback and not output.endswith("\n") else ""
    return output + separator + traceback


def _cut_bytes(text: str, limit: int) -> str:
    """Returns the text, or its beginning with a note if it has more bytes than the limit."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return text
    note = f"\n[Cut: {len(encoded)} bytes in all.]\n"
    return encoded[: max(limit - len(note), 0)].decode(errors="ignore") + note
