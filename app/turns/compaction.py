"""Collects the summary that a model writes in a compaction turn and turns it into one sealed item."""

from collections.abc import Callable, Sequence

from antiphon.events.items import Compaction
from antiphon.state.segments import CompleteItem, Say, Segment

EMPTY_SUMMARY_MESSAGE = "The model produced an empty summary. Retry the request."


class CompactionCollector:
    """Collects the message text. Reasoning is not part of the summary, and a compaction turn has no tools."""

    def __init__(self, seal: Callable[[str], str]) -> None:
        self._seal = seal
        self._texts: list[str] = []

    def add_segments(self, segments: Sequence[Segment]) -> None:
        """Collects the text of the `Say` segments."""
        self._texts += [segment.text for segment in segments if isinstance(segment, Say)]

    @property
    def text(self) -> str:
        """Summary collected so far, without surrounding white space."""
        return "".join(self._texts).strip()

    def build_item(self) -> CompleteItem:
        """Returns the sealed summary as an item. The machine assigns its id."""
        return CompleteItem(Compaction(id="", encrypted_content=self._seal(self.text)))
