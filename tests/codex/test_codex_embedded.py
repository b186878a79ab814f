"""The real Codex on the embedded model: prompt, template, engine, dialect and machine, with nobody's script."""

import time
from collections.abc import Iterator

import pytest

from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Engine
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony import detect
from antiphon.harmony.format import ModelFormat
from tests.codex.codex_process import KEY, Codex
from tests.codex.recorder import Tape
from tests.conftest import Serve
from tests.serving import RunningServer, serve

WEIGHED = pytest.mark.skipif(
    not (MODEL_DIR / "model.safetensors").exists(), reason="the embedded model's weights are not in this tree"
)
LONG = "directory-with-quite-a-long-name"


def catalogue(engine: Engine, form: ModelFormat) -> ModelRegistry:
    return ModelRegistry([ServedModel(names=("antiphon",), engine=engine, format=form, created=int(time.time()))])


def form() -> ModelFormat:
    return detect.load_format(MODEL_DIR, "hermes").format


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[RunningServer, Tape]]:
    """One for all: a process with torch and a model in it takes seconds to begin."""
    engine, tape = ProcessEngine(MODEL_DIR, {"device": "cpu", "threads": 1}), Tape()
    with serve(catalogue(engine, form()), api_keys=(KEY,), around=tape.around) as running:
        yield running, tape


@pytest.fixture
def tape(recorded: tuple[RunningServer, Tape]) -> Iterator[Tape]:
    _, tape = recorded
    tape.exchanges.clear()
    tape.sockets.clear()
    yield tape
    tape.check()


@pytest.fixture
def served(recorded: tuple[RunningServer, Tape], tape: Tape) -> RunningServer:
    return recorded[0]


def test_the_users_words_reach_the_model_whole(codex: Codex, server: Serve) -> None:
    """The template keeps little of a prompt. What Codex itself says before the user speaks must not cost the request."""
    told = form()
    reply = {"name": "heard", "when": ["<|im_start|>user\nrun `echo antiphon-7391`<|im_end|>"], "output": ["Heard."]}
    replies = parse_script({"reply": [reply, {"name": "lost", "output": ["Lost."]}]})
    engine = ScriptedEngine(replies, encode=told.encode, decode=told.decode)
    deep = codex.home / LONG / LONG / LONG / LONG
    there = Codex(program=codex.program, home=deep)
    ran = there.exec(server(catalogue(engine, told), api_keys=(KEY,)), "run `echo antiphon-7391`")
    assert ran.final == "Heard."


@WEIGHED
@pytest.mark.parametrize("prompt", ["run `echo antiphon-7391`", "Run `echo antiphon-7391`."])
def test_it_runs_the_command_and_reports_its_output(
    codex: Codex, served: RunningServer, tape: Tape, prompt: str
) -> None:
    ran = codex.exec(served, prompt)
    assert ran.code == 0, ran
    [command] = ran.items("command_execution")
    assert "echo antiphon-7391" in command["command"]
    assert (command["aggregated_output"], command["exit_code"]) == ("antiphon-7391\n", 0)
    assert "antiphon-7391" in ran.final
    _, report = tape.turns
    [output] = report.items("function_call_output")
    assert output["output"].endswith("Output:\nantiphon-7391\n")


@WEIGHED
def test_a_greeting_is_answered_in_words(codex: Codex, served: RunningServer) -> None:
    ran = codex.exec(served, "Hello!")
    assert ran.code == 0 and ran.final and not ran.items("command_execution")
