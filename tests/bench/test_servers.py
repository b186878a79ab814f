"""Tests of servers and scenarios, with the scripted server as the peer."""

import sys
from pathlib import Path

import pytest

from bench.peers import PEERS, UPSTREAM, Peer
from bench.scenarios import run_growing_context, run_long_prompt, run_next_turn
from bench.servers import NotStartedError, ServerPool, make_prompt

OUTPUT = ", ".join(['"x", {pause = 0.01}'] * 100)


@pytest.fixture
def scripted_peer(tmp_path: Path) -> Peer:
    script = tmp_path / "script.toml"
    script.write_text(f"[[reply]]\nname = 'x'\noutput = [{OUTPUT}]\n", encoding="utf-8")
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    return Peer(
        "antiphon",
        lambda model, port: [*command, "--served-model-name", model.name, "--port", str(port)],
        ("antiphon",),
    )


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_only_models_with_random_routers_are_quantized_by_force(form: str) -> None:
    build = PEERS[f"antiphon-{form}"].build_command
    assert "--force-quantization" in build(Path("oss20b-8"), 1) and "--force-quantization" not in build(
        Path("small"), 1
    )
    assert "--force-quantization" not in PEERS["antiphon"].build_command(Path("oss20b-8"), 1)


async def test_server_is_measured_and_terminated(scripted_peer: Peer, tmp_path: Path) -> None:
    with ServerPool("tiny", tmp_path) as pool:
        server = await pool.start(scripted_peer, 2, tokens=8)
        with server.resumed():
            sample = await server.run_prompts([make_prompt(f"{index}", 64) for index in range(2)], 32)
            next_turn = await run_next_turn(server, 1)
            contexts = await run_growing_context(server, 1)
        assert server.process.peak_memory() > 0
    assert server.process.has_exited
    assert (sample.errors, sample.output_tokens) == ((), 2 * 32)
    assert server.startup_s > 0
    assert next_turn["cached share of the resent tokens"] == 0
    assert [record["context"] for record in contexts] == sorted(record["context"] for record in contexts)


async def test_long_prompt_measures_itl_of_running_streams(scripted_peer: Peer, tmp_path: Path) -> None:
    with ServerPool("tiny", tmp_path) as pool:
        server = await pool.start(scripted_peer, 1, tokens=8)
        with server.resumed():
            for seed in range(5):
                record = await run_long_prompt(server, seed)
                if record["max ITL during, ms"]:  # on a busy machine no text may arrive during the prompt
                    break
    assert record["ITL before, ms"] >= 9
    assert record["ratio"] == pytest.approx(record["ITL during, ms"] / record["ITL before, ms"])
    assert record["max ITL during, ms"] >= record["ITL during, ms"]


async def test_error_of_failed_start_contains_server_output(tmp_path: Path) -> None:
    broken = Peer("broken", lambda model, port: [sys.executable, "-c", "raise SystemExit('no such model')"], ())
    with ServerPool("tiny", tmp_path) as pool:
        with pytest.raises(NotStartedError, match="no such model"):
            await pool.start(broken, 1)
        assert pool.servers == []


async def test_gpu_peer_is_not_started_without_gpu(tmp_path: Path) -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with ServerPool("small", tmp_path) as pool, pytest.raises(NotStartedError, match="finds no GPU"):
        await pool.start(PEERS["antiphon-gpu"], 1)


async def test_peer_that_is_not_installed_is_not_started(tmp_path: Path) -> None:
    missing = Peer("missing", lambda model, port: [], (), env_name="missing")
    with ServerPool("tiny", tmp_path) as pool, pytest.raises(NotStartedError, match="make bench-peers"):
        await pool.start(missing, 1)


def test_peer_runs_a_model_with_any_number_of_layers() -> None:
    assert PEERS["antiphon-int8"].unavailable_reason("oss20b-2") is None
    assert "does not run" in (PEERS["llama.cpp-q4_0"].unavailable_reason("oss20b-2") or "")
    command = PEERS["antiphon-int4"].build_command(Path("oss20b-2"), 1)
    assert command[command.index("--dialect") + 1] == "hermes"
    assert "--dialect" not in PEERS["antiphon-int4"].build_command(Path("small"), 1)


async def test_peer_in_front_of_another_uses_its_running_server(scripted_peer: Peer, tmp_path: Path) -> None:
    """The upstream server keeps running while the peer in front of it is measured."""
    code = "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"
    front = Peer("front", lambda model, port: [sys.executable, "-c", code, UPSTREAM], (), in_front_of="antiphon")
    with ServerPool("tiny", tmp_path) as pool:
        with pytest.raises(NotStartedError, match="in front of antiphon, which does not run"):
            await pool.start(front, 1)
        upstream = await pool.start(scripted_peer, 1, tokens=8)
        with pytest.raises(NotStartedError, match=f"no reply within 2 s: http://127.0.0.1:{upstream.port}"):
            await pool.start(front, 1, timeout_s=2.0)
        upstream.idle_cores = 1.0
        upstream.pause_if_busy()
        assert (await upstream.run_prompts([make_prompt("on", 64)], 4)).errors == ()
