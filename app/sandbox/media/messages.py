"""Messages to the processes that read pictures and PDFs. Both sides import this module, the server without libraries.

The header of a message is a struct in msgpack. A reply may bring a descriptor.
"""

from typing import Literal

from msgspec import Struct

from antiphon.app.sandbox.messages import WorkerLimits
from antiphon.engine.media_messages import MediaArray

MAX_PAYLOAD_BYTES = 512 << 20
"""Limit on the payload of a reply, and on the size of the arrays of a picture."""
MEDIA_CPU_LIMIT_S = 10.0
"""CPU time that a picture, or a few pages of a PDF, may take."""
MEDIA_REPLY_TIMEOUT_S = 120.0
"""Elapsed time after which a process that does not reply is killed. Loading a model's processor counts here, and not as
CPU time."""
MEDIA_LIMITS = WorkerLimits(
    memory_bytes=2 << 30,
    max_payload_bytes=MAX_PAYLOAD_BYTES,
    cpu_limit_s=MEDIA_CPU_LIMIT_S,
    reply_timeout_s=MEDIA_REPLY_TIMEOUT_S,
)
"""Limits of the processes that read pictures and PDFs, which are larger than grammars and templates."""

FaultCode = Literal[
    "unreadable",
    "unsupported_format",
    "too_large",
    "too_small",
    "too_slow",
    "busy",
    "pdf_password",
    "pdf_damaged",
    "pdf_pages",
    "unavailable",
]
Measure = Literal["", "pixels", "side", "bytes", "ratio", "size", "pages"]


class ImageLimits(Struct, frozen=True, array_like=True):
    """Largest pictures that are decoded."""

    max_pixels: int = 40_000_000
    max_side: int = 16_000


class TokenBudget(Struct, frozen=True, array_like=True):
    """Limits of a prepared picture. Larger ones are scaled down."""

    max_tokens: int
    max_side: int = 0
    """Longest side in pixels; 0: any."""
    max_pixels: int = 0
    """0: any number."""


class ProcessorFiles(Struct, frozen=True, array_like=True):
    """Files of a model that configure its processor. The process opens none itself."""

    fingerprint: bytes
    """SHA-256 of the files and of the versions of the libraries."""
    model_type: str
    processor: bytes
    """The content of processor_config.json; empty if there is none."""
    image_processor: bytes
    """The content of preprocessor_config.json; empty if there is none."""
    tokens: dict[str, str]
    """Special tokens that tokenizer_config.json names: name → text."""
    processor_class: str = ""
    """The class that tokenizer_config.json names; empty if none."""


class InspectRequest(Struct, frozen=True, array_like=True, tag=True):
    """Asks for the `ImageFacts` of a picture. The payload is the picture."""

    limits: ImageLimits


class DescribeRequest(Struct, frozen=True, array_like=True, tag=True):
    """Asks for the `ProcessorFacts` of a model."""

    files: ProcessorFiles


class PrepareRequest(Struct, frozen=True, array_like=True, tag=True):
    """Asks for the arrays of a picture. The payload is the picture, the reply a `PreparedReply` with a descriptor."""

    limits: ImageLimits
    files: ProcessorFiles
    budget: TokenBudget
    num_images: int = 1
    """Pictures in the prompt. It matters to a few families only."""


class EncodeRequest(Struct, frozen=True, array_like=True, tag=True):
    """Asks for a picture as PNG without metadata. The payload is the picture, that of the reply the PNG."""

    limits: ImageLimits
    budget: TokenBudget
    files: ProcessorFiles | None = None
    """The processor that measures the budget; None: `max_side` and `max_pixels` alone."""


class PdfRequest(Struct, frozen=True, array_like=True, tag=True):
    """Asks for pages of a PDF. The payload is the file, the reply a `PdfReply`."""

    first: int
    """Index of the first page."""
    count: int
    max_pages: int
    """Pages that a document may have."""
    max_page_chars: int
    max_pixels: int = 0
    """Pixels of a rendered page; 0: pages are not rendered."""


class ImageFacts(Struct, frozen=True, array_like=True, tag=True):
    """Facts from the header of a picture."""

    media_type: str
    width: int
    height: int
    """As stored, before an orientation is applied."""


class ProcessorFacts(Struct, frozen=True, array_like=True, tag=True):
    """Facts about a model's processor. If `error` is set, it cannot be used."""

    image_token: str = ""
    """Placeholder that the chat template writes for a picture."""
    soft_token: str = ""
    """Token whose rows are replaced by features."""
    depends_on_count: bool = False
    """True if a picture is prepared in another way if the prompt has several."""
    error: str = ""


class PreparedReply(Struct, frozen=True, array_like=True, tag=True):
    """A prepared picture. Its arrays are in the descriptor, or, where there is none, in the payload."""

    rows: int
    """Soft tokens."""
    replacement: str
    """Text that takes the place of the template's placeholder."""
    grid: tuple[int, ...]
    """Time, height and width in patches; empty if the model has no such grid."""
    width: int
    height: int
    """Size in which the processor got the picture."""
    variant: str
    """Other changes that kept the budget; empty if there are none."""
    arrays: tuple[MediaArray, ...]
    size: int


class EncodedReply(Struct, frozen=True, array_like=True, tag=True):
    """A picture as PNG, which is the payload."""

    width: int
    height: int
    tokens: int = 0
    """Tokens of the picture, if a processor has measured it."""


class PageFacts(Struct, frozen=True, array_like=True):
    """A page of a PDF."""

    number: int
    """Beginning with 1."""
    text: str
    is_cut: bool = False
    """True if the page has more text."""
    png_bytes: int = 0
    """Length of the rendered page. The payload has the pages one after the other."""


class PdfReply(Struct, frozen=True, array_like=True, tag=True):
    """Pages of a PDF, and how many it has."""

    num_pages: int
    pages: tuple[PageFacts, ...]


class FaultReply(Struct, frozen=True, array_like=True, tag=True):
    """Reason why a picture or PDF cannot be read: numbers and words of this project only, no library's text."""

    code: FaultCode
    measure: Measure = ""
    found: int = 0
    allowed: int = 0
    width: int = 0
    height: int = 0


MediaRequest = InspectRequest | DescribeRequest | PrepareRequest | EncodeRequest | PdfRequest
MediaReply = ImageFacts | ProcessorFacts | PreparedReply | EncodedReply | PdfReply | FaultReply
