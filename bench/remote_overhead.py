"""CPU time per token of a remote engine beside the scripted engine: `python -m bench.remote_overhead`.

One server process has two models that generate the same tokens: one plays a script, the other reads a canned engine in
a third process, which writes one token per stream and tick. Rounds alternate between the two. Printed are the medians
of the server's CPU microseconds per token, and their difference: the cost of the remote part.
"""

import argparse
import io
import json
import statistics
import sys
from collections.abc import Sequence

import uvloop
from rich.console import Console

from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.launch import tune_gc
from antiphon.app.main.server import run_server
from antiphon.app.observability.access_log import AccessLog, console_format
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.store.factory import open_store
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.options import RemoteModel, RemoteOptions, TokenizerCheck
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from bench import scripted_server
from bench.stream_client import StreamClient, read_to_end

LENGTH = 512
STREAMS = 64
TICK_S = 0.008
"""Time between two tokens of a stream of the canned engine: long enough for one read per token."""
MODELS = ("scripted", "remote")
VOCABULARY = 1 << 18


def build_registry(port: int) -> ModelRegistry:
    """Returns the two models. `port`: that of the canned engine."""
    scripted = scripted_server.build_registry([(LENGTH, 1)])
    model_format = scripted.served[0].format
    eos_ids = model_format.stop_ids[:1]
    model = RemoteModel(
        max_model_len=None,
        vocab_size=VOCABULARY,
        eos_ids=eos_ids,
        tokenizer_file=None,
        tokenizer_check=TokenizerCheck("", (), lambda _: ""),
        grammar_probe=None,
    )
    info = EngineInfo(max_model_len=0, vocab_size=VOCABULARY, device="remote", eos_ids=eos_ids)
    engine = RemoteEngine(RemoteOptions(endpoints=(RemoteEndpoint(host="127.0.0.1", port=port),)), model, info)
    remote = ServedModel(names=("remote",), engine=engine, format=model_format, created=0)
    return ModelRegistry([*scripted.served, remote])


def _report_ready(port: int) -> None:
    tune_gc()
    print(port, flush=True)


async def serve(engine_port: int) -> None:
    """Serves both models on a free port and prints it."""
    settings = Settings(port=0, shutdown_timeout=0.1)
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, build_registry(engine_port), store=store)
        access_log = AccessLog(console_format(Console(file=io.StringIO())), len)
        await run_server(context, listener, on_ready=_report_ready, on_request_done=access_log.add_record)
        await store.close()


def read_model(port: int, model: str, api: str) -> None:
    """Reads `STREAMS` concurrent replies."""
    body = {**scripted_server.build_body(api, scripted_server.case_prompt(LENGTH, 1)), "model": model}
    clients = [StreamClient(port, body, path=scripted_server.API_PATHS[api]) for _ in range(STREAMS)]
    read_to_end(clients, blocking=False)
    for client in clients:
        assert b'"%b":%d,' % (scripted_server.USAGE_KEYS[api], LENGTH) in client.reply, client.reply[-500:]


def measure(rounds: int, api: str) -> dict[str, list[float]]:
    """Returns the CPU microseconds per token of each round, by model."""
    tokens = json.dumps(scripted_server.build_format().encode("".join(scripted_server.WORDS)))
    samples: dict[str, list[float]] = {model: [] for model in MODELS}
    arguments: Sequence[str] = (tokens, str(LENGTH), str(TICK_S))
    with (
        scripted_server.start_server_module("bench.canned_engine", *arguments) as (_, engine_port),
        scripted_server.start_server_module("bench.remote_overhead", "--serve", str(engine_port)) as (pid, port),
    ):
        for round_index in range(-1, rounds):  # the first round is the warm-up
            for model in MODELS:
                before = scripted_server.process_cpu_seconds(pid)
                read_model(port, model, api)
                cost = (scripted_server.process_cpu_seconds(pid) - before) / STREAMS / LENGTH * 1e6
                if round_index >= 0:
                    samples[model].append(cost)
    return samples


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, default 5")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        uvloop.run(serve(args.serve))
        sys.exit()
    samples = measure(args.rounds, "Responses")
    medians = {model: statistics.median(costs) for model, costs in samples.items()}
    print(f"CPU µs per token, {STREAMS} streams, one token per write, medians of {args.rounds} alternating rounds")
    print("\n| engine | µs | rounds |\n|---|---|---|")
    for model, costs in samples.items():
        print(f"| {model} | {medians[model]:.2f} | {', '.join(f'{cost:.1f}' for cost in costs)} |")
    print(f"| remote part | {medians['remote'] - medians['scripted']:.2f} | |")


if __name__ == "__main__":
    main()
