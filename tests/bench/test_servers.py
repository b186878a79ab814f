"""A server is started, asked, put through the scenarios and ended; the scripted one stands for all."""

import sys
from pathlib import Path

import pytest

from tests.bench.peers import PEERS, Peer
from tests.bench.scenarios import growth, long_prompt, next_turn
from tests.bench.servers import Fleet, NotStartedError, prompt

WORDS = ", ".join(['"x", {pause = 0.01}'] * 100)


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    script = tmp_path / "script.toml"
    script.write_text(f"[[reply]]\nname = 'x'\nspeak = [{WORDS}]\n", encoding="utf-8")
    words = [sys.executable, "-m", "antiphon.app.cli", "serve", "--engine", "scripted", "--script", str(script)]
    return Peer(
        "antiphon", lambda model, port: [*words, "--served-model-name", model.name, "--port", str(port)], ("antiphon",)
    )


async def test_a_server_from_its_start_to_its_end(peer: Peer, tmp_path: Path) -> None:
    with Fleet("tiny", tmp_path) as fleet:
        server = await fleet.start(peer, 2)
        with server.alone():
            seen = await server.run([prompt(f"{place}", 64) for place in range(2)], 32)
            turn = await next_turn(server, 1)
            contexts = await growth(server, 1)
        assert server.process.peak() > 0
    assert server.process.over
    assert (seen.errors, seen.tokens) == ((), 2 * 32)
    assert server.started > 0
    assert turn["cached share of the resent tokens"] == 0
    assert [record["context"] for record in contexts] == sorted(record["context"] for record in contexts)


async def test_a_long_prompt_among_running_streams(peer: Peer, tmp_path: Path) -> None:
    with Fleet("tiny", tmp_path) as fleet:
        server = await fleet.start(peer, 1)
        for turn in range(5):
            told = await long_prompt(server, turn)
            if told["longest during, ms"]:  # on a busy machine nothing may come in between
                break
    assert told["median gap before, ms"] >= 9
    assert told["ratio"] == pytest.approx(told["during, ms"] / told["median gap before, ms"])
    assert told["longest during, ms"] >= told["during, ms"]


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = Peer("broken", lambda model, port: [sys.executable, "-c", "raise SystemExit('no such model')"], ())
    with Fleet("tiny", tmp_path) as fleet:
        with pytest.raises(NotStartedError, match="no such model"):
            await fleet.start(broken, 1)
        assert fleet.servers == []


async def test_a_peer_that_needs_a_gpu_is_left_out_without_one(tmp_path: Path) -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    with Fleet("small", tmp_path) as fleet, pytest.raises(NotStartedError, match="sees no GPU"):
        await fleet.start(PEERS["antiphon-gpu"], 1)


async def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path) -> None:
    gone = Peer("gone", lambda model, port: [], (), env="nowhere")
    with Fleet("tiny", tmp_path) as fleet, pytest.raises(NotStartedError, match="make bench-peers"):
        await fleet.start(gone, 1)
