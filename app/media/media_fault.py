"""Reasons why a picture or a file cannot be used. The text of a fault holds only numbers and words of this project."""

from antiphon.app.sandbox.media.messages import FaultCode, FaultReply, Measure
from antiphon.app.turn_types.blob_urls import UNKNOWN_TYPE


class MediaFault(Exception):  # noqa: N818  it is a property of the picture
    """A picture or file cannot be used. `detail` continues a sentence such as "Image at 'input[0]'"."""

    def __init__(
        self,
        code: FaultCode,
        measure: Measure = "",
        *,
        found: int = 0,
        allowed: int = 0,
        width: int = 0,
        height: int = 0,
        found_type: str = "",
        charset: str = "",
    ) -> None:
        self.code = code
        self.measure = measure
        """The limit that was exceeded. The numbers are those of this limit."""
        self.found = found
        self.allowed = allowed
        self.width = width
        self.height = height
        self.found_type = found_type
        """Media type of a file that is not read; empty for pictures."""
        self.charset = charset
        """Encoding that the client declared for such a file."""
        self.detail = _describe(self)
        super().__init__(f"{code}: {self.detail}")


def raise_fault(reply: FaultReply) -> None:
    """Raises the `MediaFault` of a reply."""
    raise MediaFault(
        reply.code,
        reply.measure,
        found=reply.found,
        allowed=reply.allowed,
        width=reply.width,
        height=reply.height,
    )


def _describe(fault: MediaFault) -> str:  # noqa: PLR0911  # a sentence for each measure
    if fault.charset:
        return f"is no text in the declared charset {fault.charset!r}. Declare another one, or send UTF-8."
    if fault.found_type:
        needs = (
            " Text needs UTF-8, a byte order mark, or a declared charset." if fault.found_type == UNKNOWN_TYPE else ""
        )
        return f"is {fault.found_type!r}; PDF and text are read.{needs}"
    size = f"{fault.width}x{fault.height} pixels"
    match fault.measure:
        case "pixels":
            return f"is {size}; at most {fault.allowed} pixels are read."
        case "side":
            return f"is {size}; at most {fault.allowed} pixels a side are read."
        case "ratio":
            return f"is {size}; one side may be at most {fault.allowed} times as long as the other."
        case "size":
            return f"is {size}, which is less than the model takes."
        case "bytes":
            return f"has {fault.found} bytes; at most {fault.allowed} are read."
        case "pages":
            return f"has {fault.found} pages; at most {fault.allowed} are read."
    return _DETAILS[fault.code]


_DETAILS: dict[FaultCode, str] = {
    "unreadable": "is damaged or cut.",
    "unsupported_format": "is not a PNG, JPEG, GIF or WebP image.",
    "too_large": "is too large.",
    "too_small": "is too small.",
    "too_slow": "takes too much time or memory to read.",
    "busy": "cannot be read now: too many pictures wait.",
    "pdf_password": "is password protected.",
    "pdf_damaged": "is not a valid PDF.",
    "pdf_pages": "has too many pages.",
    "unavailable": "cannot be read: the server's log has the reason.",
}
