"""What a model says when a conversation is to be compacted: kept back, and told as one item that only we can read."""

from collections.abc import Callable, Sequence

from antiphon.events.items import Compaction
from antiphon.state.segments import CompleteItem, Say, Segment

EMPTY_SUMMARY_MESSAGE = "The model wrote no summary; send the request again."


class CompactionCollector:
    """Gathers the text for the user. Reasoning is no part of it, and there was nothing to call."""

    def __init__(self, seal: Callable[[str], str]) -> None:
        self._seal = seal
        self._said: list[str] = []

    def add_segments(self, segments: Sequence[Segment]) -> None:
        """More of what the model said."""
        self._said += [segment.text for segment in segments if isinstance(segment, Say)]

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._said).strip()

    def build_item(self) -> CompleteItem:
        """The compaction. The machine gives it its id."""
        return CompleteItem(Compaction(id="", encrypted_content=self._seal(self.text)))
