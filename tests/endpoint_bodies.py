"""The bodies of all endpoints, by method and main path."""

from antiphon.app.main.table import ENDPOINTS
from antiphon.app.requests.fields import RequestBody

BODIES: dict[str, type[RequestBody]] = {
    f"{each.method} {each.path}": each.body for each in ENDPOINTS if isinstance(each.body, type)
}
