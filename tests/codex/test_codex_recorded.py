"""The real Codex on the embedded model, recorded, and again on the recording without the model."""

import asyncio
from pathlib import Path

from antiphon.app.options.serve_options import ServeOptions
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.scripted.replay import create_scripted_engine, record_engine
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Engine
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import LoadedFormat
from tests.codex.codex_process import API_KEY, CodexCli, CodexRun
from tests.codex.embedded_registry import needs_weights
from tests.codex.recorder import TrafficRecorder
from tests.engine.threaded_engine import ThreadWorker
from tests.normalized_streams import normalize_stream
from tests.serving import serve

PROMPT = "run `echo antiphon-7391`"


def run_codex(codex: CodexCli, engine: Engine, loaded: LoadedFormat) -> tuple[CodexRun, list[bytes]]:
    """Runs Codex on an engine. Returns the run, and the streams that Codex has read."""
    recorder = TrafficRecorder()
    model = ServedModel(names=("antiphon",), engine=engine, format=loaded.format, created=1_700_000_000)
    with serve(ModelRegistry([model]), api_keys=(API_KEY,), wrap_app=recorder.wrap_app) as server:
        run = codex.exec(server, PROMPT)
    recorder.check_streams()
    return run, [exchange.raw_reply for exchange in recorder.turns]


@needs_weights
def test_codex_reads_the_same_events_from_a_recording(codex: CodexCli, tmp_path: Path) -> None:
    file = tmp_path / "codex.toml"
    options, loaded = ServeOptions(record=file), detect.load_format(MODEL_DIR)
    model = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    run, streams = run_codex(codex, record_engine(options, model, loaded, "antiphon"), loaded)
    player, replayed_format, name = asyncio.run(create_scripted_engine(ServeOptions(engine="scripted", script=file)))
    replayed_run, replayed = run_codex(codex, player, replayed_format)
    assert run.exit_code == 0 and "antiphon-7391" in run.final_message and len(streams) == 2
    assert name == "antiphon" and replayed_run.final_message == run.final_message
    assert [*map(normalize_stream, replayed)] == [*map(normalize_stream, streams)]
