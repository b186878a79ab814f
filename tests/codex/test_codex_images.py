"""The real Codex with pictures: `view_image` of a good and of a bad one, and pictures of the prompt."""

from pathlib import Path

import pytest

from tests.clients.media.vision_model import make_png, vision_registry, write_vision_model
from tests.codex.codex_process import CodexCli
from tests.codex.recorder import TrafficRecorder
from tests.codex.replies import LAST_REPLY, NO_RETRIES, make_call, make_reply
from tests.conftest import StartServer

REPORT = "I saw it: "
OMITTED = "unable to process image: invalid or unsupported image data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision"))


def write_picture(codex: CodexCli, name: str, data: bytes) -> str:
    """Writes a file into Codex's folder. Returns its path."""
    codex.work_folder.mkdir(parents=True)
    path = codex.work_folder / name
    path.write_bytes(data)
    return str(path)


def test_a_picture_of_view_image_is_seen(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, folder: Path
) -> None:
    picture = write_picture(codex, "red.png", make_png(64, 64))
    script = [
        make_reply("report", REPORT, {"media": True}, when="<|vision_start|>"),
        make_reply("view", make_call("view_image", path=picture), when="Look at red.png."),
        LAST_REPLY,
    ]
    server = start_server(vision_registry(folder, script), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Look at red.png.", *NO_RETRIES)
    assert run.exit_code == 0, run.stderr
    assert run.final_message.startswith(f"{REPORT}1 image: 4 tokens")
    [output] = recorder.turns[-1].items_of_type("function_call_output")
    assert [part["type"] for part in output["output"]] == ["input_image"]


def test_the_session_continues_after_a_broken_picture(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, folder: Path
) -> None:
    """Codex decodes pictures itself, and sends an error in place of one that is damaged."""
    picture = write_picture(codex, "cut.png", make_png(64, 64)[:60])
    script = [
        make_reply("report", "I cannot use that picture.", when=OMITTED),
        make_reply("view", make_call("view_image", path=picture), when="Look at cut.png."),
        LAST_REPLY,
    ]
    server = start_server(vision_registry(folder, script), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Look at cut.png.", *NO_RETRIES)
    assert (run.exit_code, run.final_message) == (0, "I cannot use that picture."), run.stderr


def test_codex_knows_the_words_of_a_refused_picture(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, folder: Path
) -> None:
    """A picture that Codex can decode and the server refuses ends the turn with the remedy, not as a server's error."""
    picture = write_picture(codex, "line.png", make_png(400, 1))
    server = start_server(vision_registry(folder), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "What is this?", *NO_RETRIES, flags=(f"--image={picture}",))
    [failure] = run.events_of_type("turn.failed")
    assert failure["error"]["message"] == "Invalid image in your last message. Please remove it and try again."


def test_a_picture_of_the_prompt_is_seen(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, folder: Path
) -> None:
    picture = write_picture(codex, "red.png", make_png(64, 64))
    server = start_server(vision_registry(folder), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "What is this?", *NO_RETRIES, flags=(f"--image={picture}",))
    assert run.final_message.startswith("1 image: 4 tokens"), run.stderr
