"""Requests of load balancers and monitoring: HEAD, content types, and the access log's reason for an error."""

from functools import partial

import httpx
import pytest

from antiphon.app.turn_types.access_record import AccessRecord
from tests.conftest import StartServer
from tests.serving import RunningServer, serve

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])


@pytest.mark.parametrize(
    "path",
    ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/scripted", "/api/tags", "/v1/models/none", "/none"],
)
def test_head_answers_as_get_without_a_body(server: RunningServer, path: str) -> None:
    url = server.root + path
    get, head = httpx.get(url), httpx.head(url)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert httpx.get(url).status_code == get.status_code, "the connection stays usable"


def test_metrics_have_one_charset(server: RunningServer) -> None:
    content_type = httpx.get(f"{server.root}/metrics").headers["content-type"]
    assert content_type.startswith("text/plain; version=") and content_type.count("charset") == 1


def test_access_log_has_the_code_of_an_error(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello."]}], api_keys=("sk-one",))
    headers = {"authorization": "Bearer sk-one"}
    httpx.post(f"{server.url}/responses", json={"model": "none", "input": "Hi"}, headers=headers)
    httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "Hi", "top_p": 9}, headers=headers)
    httpx.get(f"{server.url}/models")
    httpx.get(f"{server.url}/models", headers=headers)
    codes = [record.error_code for record in server.access_records if isinstance(record, AccessRecord)]
    assert codes == ["model_not_found", "decimal_above_max_value", "invalid_api_key", ""]
