"""Queries of lists: `order`, `limit` and `after`, what a list shows besides, and the pages that they select."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.app.errors import clip_text, invalid_value
from antiphon.app.requests.query_fields import BetaQuery, Query
from antiphon.app.requests.responses.body import Includable
from antiphon.events.inputs import AnyInput

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_FILES_LIMIT = 10_000
"""Largest and default `limit` of a list of files."""
MAX_LISTED_IDS = 100
PAGE_PREFIX = "page_"
"""Begins the name of a page in Anthropic's API. The rest is the id of the last entry before it."""


class BatchesQuery(Query, frozen=True, kw_only=True):
    """Query of a list that has one order."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    after: str | None = None
    """Id of the entry before the page."""


class PageQuery(BatchesQuery, frozen=True, kw_only=True):
    """Query of a list."""

    order: Literal["asc", "desc"] | None = None
    """By time."""


class IncludeQuery(Query, frozen=True, kw_only=True):
    """Query of items."""

    include: tuple[Includable, ...] = ()


class ItemPageQuery(PageQuery, frozen=True, kw_only=True):
    """Query of a list of items."""

    include: tuple[Includable, ...] = ()


class FilesQuery(Query, frozen=True, kw_only=True):
    """Query of a list of files."""

    limit: Annotated[int, Meta(ge=1, le=MAX_FILES_LIMIT)] = MAX_FILES_LIMIT
    after: str | None = None
    """Id of the entry before the page."""
    order: Literal["asc", "desc"] = "desc"
    """By time."""
    purpose: Literal["batch", "user_data", "assistants", "vision", "batch_output", "evals"] | None = None
    """Only files with this purpose; `batch_output` is that of files that batches write. No file has `evals`."""


class AnthropicFilesQuery(BetaQuery, frozen=True, kw_only=True):
    """Query of a list of files in Anthropic's API."""

    limit: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """20 if it is left out."""
    page: str | None = None
    ids: tuple[str, ...] = ()
    """Only these files, each once."""


class ListPage(Struct, frozen=True):
    """A page of a list: items `start` to `end` (exclusive), counted from the end of the list if `descending`."""

    start: int
    end: int
    descending: bool


def select_page(query: PageQuery, items: Sequence[AnyInput]) -> ListPage:
    """Returns the page of a list of items, latest first by default. Raises `ApiError` 400."""
    return select_ids(query, [item.id for item in items], "desc")


def select_ids(query: PageQuery, ids: Sequence[str | None], default_order: str) -> ListPage:
    """Returns the page of a list with these ids. Raises `ApiError` 400."""
    is_descending = (query.order or default_order) == "desc"
    start, after = 0, query.after
    if after is not None:
        ordered = ids[::-1] if is_descending else ids
        if after not in ordered:
            raise invalid_value("after", f"Invalid 'after': item '{clip_text(after)}' is not in this list.")
        start = ordered.index(after) + 1
    return ListPage(start, start + query.limit, is_descending)


def read_ids(query: AnthropicFilesQuery) -> list[str]:
    """Returns the ids that a list is limited to, each once; none if it is not. Raises `ApiError` 400."""
    ids = [*dict.fromkeys(query.ids)]
    if ids and (query.page is not None or query.limit is not None):
        raise invalid_value("ids", "Invalid 'ids': it cannot be combined with 'page' or 'limit'.")
    if len(ids) > MAX_LISTED_IDS:
        raise invalid_value("ids", f"Invalid 'ids': at most {MAX_LISTED_IDS} are allowed.")
    return ids


def read_page(query: AnthropicFilesQuery) -> str | None:
    """Returns the id of the last entry before a page of Anthropic's API. Raises `ApiError` 400."""
    if query.page is None:
        return None
    if not query.page.startswith(PAGE_PREFIX):
        raise invalid_value("page", "Invalid 'page': it is not the 'next_page' of a list.")
    return query.page.removeprefix(PAGE_PREFIX)
