"""`logit_bias` of tokens that stand for pictures: a ban says what is true anyway, a preference is a 400."""

from functools import partial
from typing import Any

import grpc
import httpx
import pytest

from antiphon.engine.protocol import EngineInfo
from tests.app.grpc.grpc_helpers import SERVICE, connect
from tests.conftest import fresh_server
from tests.serving import RunningServer, scripted_registry, serve

SOFT_ID = 99_999
INFO = EngineInfo(max_model_len=1000, vocab_size=262_144, device="none", soft_ids=(SOFT_ID,), suppressed_ids=(SOFT_ID,))
BODIES: dict[str, dict[str, Any]] = {
    "responses": {"input": "Hi"},
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
}
SERVER = partial(serve, partial(scripted_registry, [{"name": "hello", "output": ["Hello."]}], info=INFO), grpc_port=0)
server = fresh_server


@pytest.mark.parametrize("path", BODIES)
def test_tokens_of_pictures_may_be_banned_and_not_preferred(server: RunningServer, path: str) -> None:
    def post(bias: float) -> httpx.Response:
        body = {"model": "scripted", "logit_bias": {str(SOFT_ID): bias, "5": 1}, **BODIES[path]}
        return httpx.post(f"{server.url}/{path}", json=body)

    assert [post(bias).status_code for bias in (-100, -0.5, 0)] == [200, 200, 200]
    refused = post(0.5)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logit_bias"
    assert str(SOFT_ID) in refused.json()["error"]["message"]


def test_tokens_of_pictures_may_be_banned_over_grpc(server: RunningServer) -> None:
    def generate(bias: float) -> list[Any]:
        params = {"logitBias": {str(SOFT_ID): bias}}
        request = {"requestId": f"r{bias}", "tokenized": {"inputIds": [40, 41]}, "samplingParams": params}
        with connect(server) as client:
            return list(client.call(f"{SERVICE}/Generate", request))

    assert generate(-100.0)
    with pytest.raises(grpc.RpcError) as caught:
        generate(1.0)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
