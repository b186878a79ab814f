"""Sources of a web search, and the links to them in what the model says. It knows no event loop and no network."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from msgspec import Struct

MAX_SOURCES = 50
_MAX_URL_CHARS = 2048
_MAX_TITLE_CHARS = 300
_MAX_LINK_CHARS = 1000
"""Longest text of a link. It also bounds what a bracket that is never closed makes the finder keep."""
_MAX_TARGET_CHARS = _MAX_URL_CHARS + _MAX_TITLE_CHARS
_MAX_OPEN_BRACKETS = 64
_MAX_NODES = 100_000
"""Values of a structured result that are looked at."""

_LINK = re.compile(r"https?://[^\s<>\"\x00-\x1f\x7f]+", re.IGNORECASE)
_URL_PARTS = re.compile(r"(https?://[^/?#@\\]+)([/?][^#]*)?(?:#.*)?", re.IGNORECASE)
_LINE_TITLE = re.compile(r"^[ \t*#>-]{0,8}title\**[:=]\**[ \t]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
_URL_KEYS = ("url", "link", "href", "uri")
_TITLE_KEYS = ("title", "name")
_PICTURE_KEYS = frozenset("favicon icon image images img logo profile thumbnail thumbnails".split())
_OPENERS = {")": "(", "]": "[", "}": "{"}
_TRAILING_MARKS = frozenset(".,;:!?'*_`|\\")

_TEXT_MARK = re.compile(r"[\[\]\\!\n]")
_TARGET_MARK = re.compile(r"[\[\]()\\!\s\"]")
"""The characters at which something may change: in text, and in the target of a link."""
_TARGET = re.compile(r"\s*(?:<([^<>]*)>|([^\s<]\S*))(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*")
_MARKDOWN_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")


class WebSource(Struct, frozen=True, kw_only=True):
    """A page that a search has found. The title is empty if it is unknown."""

    url: str
    title: str = ""


class SourceList(Struct, frozen=True):
    """Sources in the order in which they were found, each URL once, `MAX_SOURCES` at most."""

    sources: tuple[WebSource, ...] = ()

    @classmethod
    def from_outcome(cls, text: str, structured: Any = None, links: Sequence[str] = ()) -> "SourceList":
        """Returns the sources of the outcome of a tool.

        They are the URLs of the structured result, or of a text that is JSON, and the links. If there are none, they
        are the URLs in the text.
        """
        found = [*_walk_structure(structured if structured is not None else _parse_json(text))]
        found += [WebSource(url=link) for link in links]
        return cls(_collect(found) or _collect(_find_in_text(text)))

    def join(self, other: "SourceList") -> "SourceList":
        """Returns these sources and those of a later search."""
        return SourceList(_collect([*self.sources, *other.sources]))

    def as_text(self) -> str:
        """Returns a numbered list for the model, or an empty text."""
        return "\n".join(
            f"{number}. {source.title}: {source.url}" if source.title else f"{number}. {source.url}"
            for number, source in enumerate(self.sources, 1)
        )


class FoundCitation(NamedTuple):
    """A link to a source that has just ended."""

    end: int
    """Offset in the piece of text, behind the link."""
    length: int
    """Characters of the whole link, "[title](url)"."""
    url: str
    title: str


class CitationFinder:
    """Finds the links to sources in a text that comes in pieces. How it is split changes nothing but the offsets.

    It looks at each character once. Open brackets are a stack, so that of links in each other, the inner one counts.
    A target that turns out to be none is not read again: its brackets are on the stack like all others.
    """

    def __init__(self, sources: SourceList) -> None:
        self._links = _LinkScanner()
        self._sources = {_url_key(source.url): source for source in sources.sources}

    def feed(self, text: str) -> list[FoundCitation]:
        """Returns the links to sources that end in this piece of the text."""
        found = []
        for end, length, url, label in self._links.feed(text):
            source = self._sources.get(_url_key(url))
            if source is not None:
                found.append(FoundCitation(end, length, source.url, source.title or _clean_title(label)))
        return found


class _LinkScanner:
    """Finds Markdown's links, "[label](target)". It keeps the text from the first open bracket on."""

    def __init__(self) -> None:
        self._mode: Literal["plain", "escaped", "image", "label ended"] = "plain"
        self._kept = ""
        self._kept_at = 0
        """Position of the kept text in the whole one."""
        self._starts: deque[tuple[int, bool]] = deque(maxlen=_MAX_OPEN_BRACKETS)
        """Positions of open brackets. Those of images are marked."""
        self._label = (0, False, 0)
        """The latest label: its first bracket, whether it is that of an image, and its last bracket."""
        self._target: tuple[int, bool, int] | None = None
        """The label whose target is read."""
        self._depth, self._is_quoted = 0, False
        """Open parentheses of the target; whether its title, in quotes, is read."""
        self._last_space = self._last_newline = -2

    def feed(self, text: str) -> Iterator[tuple[int, int, str, str]]:
        """Yields end in this piece, length, URL and label of each link that ends in it."""
        begin = self._kept_at + len(self._kept)
        self._kept += text
        index = 0
        while index < len(text):
            if self._mode == "plain":
                mark = (_TEXT_MARK if self._target is None else _TARGET_MARK).search(text, index)
                if mark is None:
                    break
                index = mark.start()
            position = begin + index
            if self._step(position, text[index]) and (link := self._end_link(position)) is not None:
                yield index + 1, *link
            index += 1
        self._forget(begin + len(text))

    def _step(self, position: int, character: str) -> bool:
        """Goes one character on. Returns whether a target ends with it."""
        mode, self._mode = self._mode, "plain"
        if self._target is not None and (character == "\n" or position - self._target[2] > _MAX_TARGET_CHARS):
            self._target = None
        if mode == "escaped":
            return False
        if mode == "label ended" and character == "(":
            self._target, self._depth, self._is_quoted = self._label, 0, False
        elif character == "\\":
            self._mode = "escaped"
        elif character == "!":
            self._mode = "image"
        elif character == "[":
            self._starts.append((position, mode == "image"))
        elif character == "]" and self._starts:
            self._label = (*self._starts.pop(), position)
            self._mode = "label ended" if position - self._label[0] <= _MAX_LINK_CHARS else "plain"
        elif character.isspace():
            self._read_space(position, character)
        else:
            return self._target is not None and self._read_target(position, character)
        return False

    def _read_space(self, position: int, character: str) -> None:
        self._last_space = position
        if character == "\n":
            if position == self._last_newline + 1:
                self._starts.clear()  # An empty line ends the paragraph.
            self._last_newline = position

    def _read_target(self, position: int, character: str) -> bool:
        """Reads a mark in a target. Returns whether the target ends with it."""
        if character == '"':
            self._is_quoted = not self._is_quoted and self._last_space == position - 1
        elif self._is_quoted:
            return False
        elif character == "(":
            self._depth += 1
        elif character == ")":
            self._depth -= 1
        return self._depth < 0

    def _end_link(self, position: int) -> tuple[int, str, str] | None:
        """Returns length, URL and label of the link that ends at a position, or None if it is none, or an image."""
        assert self._target is not None
        (start, is_image, label_end), self._target = self._target, None
        target = _TARGET.fullmatch(self._kept, label_end + 2 - self._kept_at, position - self._kept_at)
        if target is None or is_image:
            return None
        self._starts.clear()  # A link has no links in its label.
        url = _MARKDOWN_ESCAPE.sub(r"\1", target[1] if target[1] is not None else target[2])
        return position + 1 - start, url, self._kept[start + 1 - self._kept_at : label_end - self._kept_at]

    def _forget(self, position: int) -> None:
        """Drops the text that no link needs any more."""
        needed = [start for start, _ in islice(self._starts, 1)]
        if self._mode == "label ended":
            needed.append(self._label[0])
        if self._target is not None:
            needed.append(self._target[0])
        oldest = max(min(needed, default=position), position - _MAX_LINK_CHARS - _MAX_TARGET_CHARS - 2, self._kept_at)
        self._kept, self._kept_at = self._kept[oldest - self._kept_at :], oldest


# --- Sources in the outcome of a tool


def _collect(found: Iterable[WebSource]) -> tuple[WebSource, ...]:
    """Returns the sources with a valid URL, each once. A later title counts where the first had none."""
    sources: dict[str, WebSource] = {}
    for source in found:
        if len(source.url) > _MAX_URL_CHARS or not _LINK.fullmatch(source.url) or not _URL_PARTS.fullmatch(source.url):
            continue
        key = _url_key(source.url)
        known = sources.get(key)
        if known is None and len(sources) == MAX_SOURCES:
            break
        if known is None or not known.title:
            sources[key] = WebSource(url=(known or source).url, title=_clean_title(source.title))
    return tuple(sources.values())


def _walk_structure(value: Any) -> Iterator[WebSource]:
    """Yields the sources in a value of JSON: objects with a URL, and URLs in lists."""
    waiting = [value]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if isinstance(node, str):
            yield WebSource(url=node)
        elif isinstance(node, Mapping):
            url = next((node[key] for key in _URL_KEYS if isinstance(node.get(key), str)), None)
            if url is not None:
                title = next((node[key] for key in _TITLE_KEYS if isinstance(node.get(key), str)), "")
                yield WebSource(url=url, title=title)
            inner = [each for key, each in node.items() if key not in _PICTURE_KEYS and not isinstance(each, str)]
            waiting += reversed(inner)
        elif isinstance(node, list | tuple):
            waiting += reversed(node[:_MAX_NODES])


def _parse_json(text: str) -> Any:
    """Returns the value of a text that is an object or an array of JSON, or None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _find_in_text(text: str) -> Iterator[WebSource]:
    """Yields the URLs of a text. Titles are those of Markdown's links, or of a line "Title: ..." before the URL."""
    labels = {url: label for _, _, url, label in _LinkScanner().feed(text)}
    previous = 0
    for match in _LINK.finditer(text):
        if len(match[0]) <= 2 * _MAX_URL_CHARS:
            url = _trim_url(match[0].partition("](")[0])
            titles = [title[1] for title in _LINE_TITLE.finditer(text, previous, match.start())]
            yield WebSource(url=url, title=labels.get(url) or (titles[-1] if titles else ""))
        previous = match.end()


def _trim_url(url: str) -> str:
    """Returns a URL of a text without the punctuation behind it."""
    end = len(url)
    while end:
        last = url[end - 1]
        opener = _OPENERS.get(last)
        if last not in _TRAILING_MARKS and (opener is None or url.count(opener, 0, end) >= url.count(last, 0, end)):
            break
        end -= 1
    return url[:end]


def _url_key(url: str) -> str:
    """Returns what two spellings of a URL have in common: no fragment, no last slash, no case in the host."""
    parts = _URL_PARTS.fullmatch(url)
    return url if parts is None else parts[1].lower() + (parts[2] or "").rstrip("/")


def _clean_title(title: str) -> str:
    return " ".join(title[: 2 * _MAX_TITLE_CHARS].split())[:_MAX_TITLE_CHARS]
