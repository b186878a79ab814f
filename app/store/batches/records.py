"""Files, batches and their lines as the store keeps them."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, structs

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
ENDED_BATCH_STATUSES = ("completed", "failed", "expired", "cancelled")
FILE_PIECE_BYTES = 1 << 20
"""Size of all pieces of a file but the last."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file without its content. Times are in seconds since 1970."""

    id: str
    created_at: int
    expires_at: int | None
    """Time from which the file does not exist any more; None: never."""
    filename: str
    purpose: str
    size: int = 0
    """Bytes."""
    media_type: str = ""
    """Type that the client named; empty if it named none."""
    upload_id: str | None = None
    """Upload that this is a part of. Only the upload finds it."""


UploadStatus = Literal["pending", "completed", "cancelled"]


class StoredUpload(Struct, frozen=True, kw_only=True):
    """A file that arrives in parts, each of which is a file of its own until the upload ends."""

    id: str
    created_at: int
    expires_at: int
    """Time from which a pending upload takes no parts any more."""
    size: int
    """Bytes that the parts have together, as the client said."""
    filename: str
    purpose: str
    media_type: str
    file_expires_s: int | None
    """Seconds from the creation of the file to its end; None: as for other files."""
    status: UploadStatus = "pending"
    file: StoredFile | None = None
    """The file, once the upload is completed."""


class LineError(Struct, frozen=True, kw_only=True):
    """Reason why a whole batch failed. `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class TokenCounts(Struct, frozen=True):
    """Tokens of one response, or of all responses of a batch."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )


class StoredBatch(Struct, frozen=True, kw_only=True):
    """A batch without its lines. `status_times` holds the time at which each status began, after `validating`."""

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    completion_window: str
    metadata: dict[str, str] | None
    output_expires_s: int | None
    """Seconds from the creation of the output files to their end; None: as for other files of batches."""
    key_id: str = ""
    """Id of the API key that created the batch; empty if it had none."""
    status: BatchStatus = "validating"
    status_times: Mapping[str, int] = {}
    model: str | None = None
    """Name of the model if all lines have the same."""
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: TokenCounts = TokenCounts()

    def with_status(self, status: BatchStatus, now: float) -> "StoredBatch":
        """Returns the batch with another status, which begins now."""
        return structs.replace(self, status=status, status_times={**self.status_times, status: int(now)})


class BatchLine(Struct, frozen=True, kw_only=True):
    """A line of the input file that was read, but not run."""

    number: int
    """Counts from 1, blank lines included."""
    rank: int
    """Place in the order in which lines run: lines whose bodies begin equally follow each other."""
    start: int
    """Offset of the line in the file, in bytes."""
    length: int
    custom_id: str
    model: str | None
    """Model that the body names; None if it names none."""


class LineResult(Struct, frozen=True, kw_only=True):
    """The HTTP reply to a line, as its own request would have got it. `status` is None for a line that was not run."""

    number: int
    custom_id: str
    status: int | None = None
    body: bytes = b""
    request_id: str = ""
