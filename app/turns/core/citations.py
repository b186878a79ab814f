"""Citations of web searches: a link to a source, in a message, becomes an annotation right after it."""

from collections.abc import Iterator

from antiphon.app.tools.search.citations import CitationFinder, SourceList
from antiphon.events.items import UrlCitation
from antiphon.state.segments import Cite, PlacedLogprob, Say, Segment


class CitationReader:
    """Adds `Cite` to the segments of a turn. `start_message` begins a message, whose sources are known then."""

    def __init__(self) -> None:
        self._finder: CitationFinder | None = None

    def start_message(self, sources: SourceList) -> None:
        """Begins a message: a link does not reach into an earlier one."""
        self._finder = CitationFinder(sources) if sources.sources else None

    def read_text(self, segment: Say) -> Iterator[Segment]:
        """Yields the text in pieces, each link to a source with its citation behind it."""
        found = self._finder.feed(segment.text) if self._finder is not None else []
        start = 0
        for citation in found:
            if citation.end > start:
                yield _cut_text(segment, start, citation.end)
            yield Cite(UrlCitation(url=citation.url, title=citation.title, start_index=0, end_index=0), citation.length)
            start = citation.end
        if start < len(segment.text):
            yield segment if not start else _cut_text(segment, start, len(segment.text))


def _cut_text(segment: Say, start: int, end: int) -> Say:
    """Returns a part of the text, with the log-probabilities of the tokens that begin in it."""
    logprobs = tuple(
        PlacedLogprob(each.offset - start, each.logprob) for each in segment.logprobs if start <= each.offset < end
    )
    return Say(segment.text[start:end], segment.phase, logprobs)
