"""The outcome of one call of a tool that this server runs."""

from typing import Any

from msgspec import Struct

from antiphon.app.turn_types.blob_urls import BlobReference
from antiphon.events.hosted import McpCallError
from antiphon.events.result_images import write_placeholder


class ResultImage(Struct, frozen=True):
    """A picture in the result of a tool. `label` is the type that the server claims, on one line."""

    reference: BlobReference
    data: bytes
    label: str

    @property
    def placeholder(self) -> str:
        """The text in the place of the picture in `ToolOutcome.marked_text`."""
        return write_placeholder(self.reference.media_type, self.reference.size, self.reference.sha256)


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The text that the model reads, and the error if the call has failed. `text` of a failed call tells why."""

    text: str
    error: McpCallError | None = None
    structured: Any = None
    """The structured content of an MCP result, if there is one."""
    links: tuple[str, ...] = ()
    """URLs of resource links in the result."""
    images: tuple[ResultImage, ...] = ()
    marked_text: str = ""
    """`text` with the placeholder of each picture, for a model that sees; empty if there are no pictures."""
