"""The declaration of an endpoint, which stands at its handler. All that depends on a path is read from it.

The router, the request guard, admission control, limits, the audit log, traces, the OpenAPI document and the pages of
the documentation read declarations; none of them compares paths.
"""

import enum
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from msgspec import Struct

from antiphon.app.errors import ErrorShape
from antiphon.app.requests.fields import RequestBody
from antiphon.app.requests.query_fields import NoQuery, Query
from antiphon.app.turn_types.turn_stats import Api

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

OPTION = "endpoint"
"""Name under which a handler of Litestar carries its declaration."""

JSON = "application/json"


class Key(enum.Enum):
    """The key that an endpoint needs."""

    NONE = "none"
    CLIENT = "client"
    """An API key, if the server has any."""
    INSPECTION = "inspection"
    """Likewise; without API keys, the page's key."""
    OPERATOR = "operator"
    """An API key whose role is `operator`, or the key of the runtime file, also without API keys."""
    PAGE = "page"
    """None: the page answers, before any key is read."""


class Form(Struct, frozen=True):
    """A multipart form with a file, which is processed while it arrives."""

    max_file_bytes: int = 0
    """Size of the largest file, if that is more than `--max-file-mib`: the form says late which kind of file it has."""


class Endpoint(Struct, frozen=True, eq=False):
    """One method at one or more paths."""

    method: Literal["GET", "POST", "DELETE", "OPTIONS", "WEBSOCKET"]
    path: str
    """`{id}` is one segment, `{name:path}` the rest of a path."""
    aliases: tuple[str, ...] = ()
    """Other paths of the same handler."""
    key: Key = Key.CLIENT
    body: type[RequestBody] | Form | None = None
    query: type[Query] = NoQuery
    anthropic_query: type[Query] | None = None
    """Query of requests with the header `anthropic-version`, if that is another one."""
    reply: type | None = None
    """Struct of a JSON reply; None: any object."""
    media_types: tuple[str, ...] = (JSON,)
    """Media types of replies, without those of errors and of the stream that a request may ask for."""
    starts: Api | None = None
    """API of the turns that a request starts. Admission control and the limit of running turns apply to it."""
    counts: bool = False
    """A request counts for the limits of its key, as all do that start turns: those of requests and tokens, budgets."""
    shape: ErrorShape = "openai"
    prepare: Callable[[Any], Awaitable[None]] | None = None
    """Runs before the handler, such as the wait for the store."""
    audit: str = ""
    """Name of the act in the audit log, besides deletions; empty if it has no line."""
    batch: bool = False
    """Lines of batches may be requests to it."""
    head: bool = True
    """A GET answers HEAD, too. False where a GET may stream; nothing that is inspected answers it."""
    traced: bool = True

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths, the main one first."""
        return (self.path, *self.aliases)

    @property
    def is_limited(self) -> bool:
        """True if a request counts for the limits of its key."""
        return self.counts or self.starts is not None

    @property
    def action(self) -> str:
        """Name of the act in the audit log; empty if it has no line."""
        return self.audit or ("delete" if self.method == "DELETE" else "")

    @property
    def answers_head(self) -> bool:
        """True if HEAD is answered as the GET is."""
        return self.method == "GET" and self.head and self.key is not Key.INSPECTION

    @property
    def is_private(self) -> bool:
        """True if no page of another origin may send the request, whatever the server allows it."""
        return self.key in (Key.INSPECTION, Key.OPERATOR)


UNKNOWN_ENDPOINT = Endpoint("GET", "")
"""Rights and shape of requests to paths that no endpoint has: their 404 needs a key, too."""


Fields = ParamSpec("Fields")


def _declare_with(
    create: Callable[Fields, Endpoint],
) -> Callable[Fields, Callable[[Callable[..., Any]], "HTTPRouteHandler"]]:
    def declare(*args: Fields.args, **fields: Fields.kwargs) -> Callable[[Callable[..., Any]], "HTTPRouteHandler"]:
        from litestar.handlers import HTTPRouteHandler  # noqa: PLC0415  fast start of the command line

        declared = create(*args, **fields)
        return HTTPRouteHandler(
            [re.sub(r"{(\w+)}", r"{\1:str}", path) for path in declared.paths],
            http_method=declared.method,  # type: ignore[arg-type]  # a WebSocket has no handler of Litestar
            status_code=200,
            before_request=declared.prepare,
            opt={OPTION: declared},
        )

    return declare


endpoint = _declare_with(Endpoint)
"""Declares the decorated function to be the handler of an endpoint: it takes the fields of `Endpoint`. Replies have the
status 200."""


def declared_endpoint(handler: Any) -> Endpoint | None:
    """Returns the declaration of a handler; None for one that Litestar made itself."""
    found: Endpoint | None = handler.opt.get(OPTION)
    return found
