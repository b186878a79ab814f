"""Tools that clients name by type, as requests describe them. They are read only if this server runs them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class UserLocation(Struct, frozen=True, kw_only=True):
    """Where the user is, about."""

    type: Literal["approximate"] | None = None
    city: str | None = None
    region: str | None = None
    country: str | None = None
    timezone: str | None = None


class SearchFilters(Struct, frozen=True, kw_only=True):
    """Domains whose pages a web search may return."""

    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None


class WebSearchBody(Struct, frozen=True, kw_only=True):
    """The hosted tool `web_search`. `external_web_access`: it may read pages that it has not stored.

    `max_uses` is the number of calls that are run, in the Messages API.
    """

    external_web_access: bool | None = None
    filters: SearchFilters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    max_uses: Annotated[int, Meta(ge=1)] | None = None


class AutoContainer(Struct, frozen=True, kw_only=True):
    """A new container, or the one of the latest call."""

    type: Literal["auto"]
    file_ids: tuple[str, ...] | None = None
    memory_limit: str | None = None
    network_policy: Any = None


class CodeInterpreterBody(Struct, frozen=True, kw_only=True):
    """The hosted tool `code_interpreter`."""

    container: Annotated[str, Meta(min_length=1, max_length=128)] | AutoContainer | None = None


class RankingOptions(Struct, frozen=True, kw_only=True):
    """How the results of a search in files are ranked."""

    ranker: str | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    hybrid_search: Any = None


class FileSearchBody(Struct, frozen=True, kw_only=True):
    """The hosted tool `file_search`."""

    vector_store_ids: Annotated[list[str], Meta(max_length=16)]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    filters: Any = None
    ranking_options: RankingOptions | None = None
