"""The real Codex on the embedded model: prompt, template, engine, dialect and machine, with nobody's script."""

import time
from collections.abc import Iterator

import pytest

from app.catalogue import Catalogue, ServedModel
from engine.embedded import MODEL_DIR
from harmony import choose
from tests.codex.cli import KEY, Codex
from tests.codex.tape import Tape
from tests.serving import Served, serve

pytestmark = pytest.mark.skipif(
    not (MODEL_DIR / "model.safetensors").exists(), reason="the embedded model's weights are not in this tree"
)


@pytest.fixture
def served(tape: Tape) -> Iterator[Served]:
    from engine.build import Options
    from engine.torch_engine import TorchEngine

    loaded = choose.load(MODEL_DIR, None)
    engine = TorchEngine(MODEL_DIR, Options(device="cpu", threads=1))
    model = ServedModel(names=("antiphon",), engine=engine, format=loaded.format, created=int(time.time()))
    with serve(Catalogue([model]), keys=(KEY,), around=tape.around) as running:
        yield running


@pytest.mark.parametrize("prompt", ["run `echo antiphon-7391`", "Run `echo antiphon-7391`."])
def test_it_runs_the_command_and_reports_its_output(codex: Codex, served: Served, tape: Tape, prompt: str) -> None:
    ran = codex.exec(served, prompt)
    assert ran.code == 0, ran
    [command] = ran.items("command_execution")
    assert "echo antiphon-7391" in command["command"]
    assert (command["aggregated_output"], command["exit_code"]) == ("antiphon-7391\n", 0)
    assert "antiphon-7391" in ran.final
    _, report = tape.turns
    [output] = report.items("function_call_output")
    assert output["output"].endswith("Output:\nantiphon-7391\n")


def test_a_greeting_is_answered_in_words(codex: Codex, served: Served) -> None:
    ran = codex.exec(served, "Hello!")
    assert ran.code == 0 and ran.final and not ran.items("command_execution")
