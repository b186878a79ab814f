"""`antiphon inspect` in a pipe: each option against a real server, and what it says if something is missing."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.inspection.record import TurnRecord
from antiphon.app.route_helpers.inspected_turns import NOT_RECORDED
from antiphon.kit.snapshot.stream_text import format_stream
from tests.app.inspection.inspector import Inspector
from tests.console.inspect.inspect_script import ATTACK, SCRIPT, TOOLS, clean_environment, run_piped, write_key
from tests.kit.hostile_texts import find_terminal_controls
from tests.kit.pseudo_terminal import COMMAND
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import serve


def show(*arguments: str, status: int = 0) -> list[str]:
    """Returns the lines of a run."""
    done = run_piped(*arguments)
    assert (done.returncode, done.stderr) == (status, ""), done
    return done.stdout.splitlines()


def test_timeline_has_the_ending_first_and_every_event_with_its_time(inspector: Inspector) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    lines = show(turn_id)
    turn, rows = inspector.get(f"/turns/{turn_id}").json(), inspector.lines(f"/turns/{turn_id}/events")
    times = turn["times_ms"]
    assert lines[0] == f"completed: stop_token: {turn['ending']['detail']}" and lines[1] == turn["description"]
    assert lines[2] == f"tokens: input {turn['input_tokens']} (cached 0), output {turn['output_tokens']}"
    prefill = times["first_token"] - times["admitted"]
    assert f"prefill {prefill:.3f}, decode {times['last_token'] - times['first_token']:.3f}" in lines[3]
    assert lines[4] == f"{turn_id}: api responses, model scripted, dialect hermes"
    wire = format_stream([row["event"] for row in rows], merge=False, usage=True).splitlines()
    assert [line[13:] for line in lines[6:]] == wire
    known = [row["at_us"] for row in rows if "at_us" in row]
    shown = [float(line[:11]) for line in lines[6:] if line[:11].strip()]
    assert len(shown) == len(rows) and sorted({round(each * 1e3) for each in shown}) == sorted(set(known))


def test_call_of_a_tool_that_was_not_offered_is_told_with_the_ending(inspector: Inspector) -> None:
    turn_id = inspector.ask("Seek", tools=TOOLS)
    lines = show(turn_id)
    assert lines[2].startswith("! The model called seek, a tool that the request does not offer.")
    assert lines[2].endswith("; offered: find.")
    verified = show(turn_id, "--verify", status=1)
    [note] = [line for line in verified if line.startswith("note tool-not-offered at event ")]
    assert "seek: expected a call of find, but got a call of seek that was returned, in the tokens " in note
    assert verified[-1] == "2 findings, 1 errors; the tokens were replayed", "tool-unknown says what clients do"


def test_last_is_the_last_turn(inspector: Inspector) -> None:
    inspector.ask("Search", tools=TOOLS)
    turn_id = inspector.ask("Hi")
    assert show("--last") == show(turn_id) and turn_id in show("--last")[4]


@pytest.mark.parametrize("number", range(0, 22, 3))
def test_at_shows_the_step_and_the_response_so_far(inspector: Inspector, number: int) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    rows = inspector.lines(f"/turns/{turn_id}/events")
    lines = show(turn_id, "--at", str(number))
    end = next(row for row in rows[number:] if "state" in row)
    assert lines[0] == f"event {number}, step {end['step']}, {end['at_us'] / 1e3:.3f} ms"
    table = {(cell["state"], cell["input"]): cell for cell in inspector.get("/table").json()["cells"]}
    [states] = [line for line in lines if line.startswith("state ")]
    assert states.endswith(f"→ {end['state']}, inputs {', '.join(end['inputs'])}")
    for state, symbol in end["cells"]:
        cell = table[state, symbol]
        guard = f", if {cell['guard']}" if cell["guard"] else ""
        verbs = ", ".join(cell["verbs"]) or "none"
        assert f"  {state} {symbol} → {cell['next']}{guard}: {verbs}" in lines
    so_far = lines[lines.index("response so far:") + 1 :]
    num_items = sum(row["event"]["type"] == "response.output_item.added" for row in rows[: number + 1])
    assert len(so_far) == 1 + num_items


def test_at_names_the_place_that_a_delta_changes(inspector: Inspector) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    rows = inspector.lines(f"/turns/{turn_id}/events")
    deltas = [row for row in rows if row["event"]["type"] == "response.output_text.delta"]
    lines = show(turn_id, "--at", str(deltas[1]["n"]))
    assert "changes output[1].content[0].text" in lines
    text = "".join(row["event"]["delta"] for row in deltas[:2])
    assert lines[-1] == f'     - message msg_1 in_progress output_text "{text}"'
    done = run_piped(turn_id, "--at", str(len(rows)))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: the turn has no event {len(rows)}: it has events 0 to {len(rows) - 1}\n"


def test_prompt_has_every_token_with_its_marks(inspector: Inspector) -> None:
    turn_id = inspector.ask("Hi")
    lines, runs = show(turn_id, "--prompt"), inspector.lines(f"/turns/{turn_id}/prompt")
    marks = [" ".join(mark for mark in ("control", "cached", "restored") if run[mark]) for run in runs]
    heads = [f"{run['n']:>6}  {len(run['ids'])} tokens  {mark}" for run, mark in zip(runs, marks, strict=True)]
    assert lines[0] == "round 0" and lines[1::2] == [head.rstrip() for head in heads]
    assert any("control" in mark for mark in marks) and any("cached" in mark for mark in marks)
    shown = "".join(line[4:].replace("·", "") for line in lines[2::2])
    assert shown == "".join(text for run in runs for text in run["texts"]).replace("\n", "␊")


def test_turn_names_the_one_before_it(inspector: Inspector) -> None:
    first = inspector.ask("Hi", store=True)
    assert show(inspector.ask("Hi", previous_response_id=first))[4].endswith(f"after {first}")


@pytest.mark.parametrize("api", ["chat", "messages", "completions"])
def test_readings_are_those_of_the_server(inspector: Inspector, api: str) -> None:
    turn_id = inspector.ask("Hi é \u202e")
    expected = inspector.lines(f"/turns/{turn_id}/readings/{api}")
    assert [json.loads(line) for line in show(turn_id, "--as", api)] == expected and expected


@pytest.mark.parametrize("form", ["test", "script", "cassette", "curl", "python"])
def test_exports_are_the_files_of_the_server(inspector: Inspector, form: str) -> None:
    turn_id = inspector.ask("Hi é \u202e")
    expected = inspector.get(f"/turns/{turn_id}/export/{form}")
    done = run_piped(turn_id, "--as", form)
    assert (done.returncode, done.stderr) == (0, "") and expected.status_code == 200
    assert done.stdout == expected.text and "Hi" in done.stdout


def test_export_that_cannot_be_made(inspector: Inspector) -> None:
    message = [{"role": "user", "content": "Hi"}]
    reply = inspector.client.post("/v1/chat/completions", json={"model": "scripted", "messages": message})
    turn_id = inspector.get("/turns", limit=1).json()["data"][0]["id"]
    assert reply.status_code == 200 and inspector.get(f"/turns/{turn_id}/export/test").status_code == 400
    done = run_piped(turn_id, "--as", "test")
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("Error: 400: ")


def test_json_has_the_record_and_the_events(inspector: Inspector) -> None:
    turn_id = inspector.ask("attack")
    done = run_piped(turn_id, "--as", "json")
    record, *rows = map(json.loads, done.stdout.splitlines())
    assert record == inspector.get(f"/turns/{turn_id}").json()
    assert rows == inspector.lines(f"/turns/{turn_id}/events") and not find_terminal_controls(done.stdout)
    assert any(ATTACK in str(row["event"].get("text")) for row in rows)


def test_diff_of_request_prompt_and_output(inspector: Inspector) -> None:
    first, second = inspector.ask("Search one", tools=TOOLS), inspector.ask("Search two", tools=TOOLS)
    lines = show(first, "--diff", second)
    assert lines[0] == f"- {first}" and f"+ {second}" in lines and "output: the same" in lines
    assert '- "input": "Search one",' in lines and '+ "input": "Search two",' in lines
    [prompts] = [line for line in lines if line.startswith("prompt: ")]
    ids = [
        [token for run in inspector.lines(f"/turns/{each}/prompt") for token in run["ids"]] for each in (first, second)
    ]
    common = next(place for place, (left, right) in enumerate(zip(*ids, strict=False)) if left != right)
    assert prompts == f"prompt: {len(ids[0])} and {len(ids[1])} tokens, of which the first {common} are the same"
    assert lines[-2].startswith(f"- {common}: o·n·e·") and lines[-1].startswith(f"+ {common}: t·w·o·")
    same = show(first, "--diff", first)
    assert same[-3:] == ["request: the same", "output: the same", f"prompt: the same {len(ids[0])} tokens"]
    assert "output: different" in show(first, "--diff", inspector.ask("Hi"))


def test_encryption_is_no_difference(inspector: Inspector) -> None:
    include = {"include": ["reasoning.encrypted_content"], "tools": TOOLS}
    ids = [inspector.ask("Search", **include) for _ in range(2)]
    ends = [inspector.lines(f"/turns/{each}/events")[-1]["event"]["response"] for each in ids]
    secrets = {response["output"][0]["encrypted_content"] for response in ends}
    assert len(secrets) == 2 and "output: the same" in show(ids[0], "--diff", ids[1])


def test_verify_has_the_findings_and_their_status(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    assert show(turn_id, "--verify") == ["0 findings, 0 errors; the tokens were replayed"]
    open_log = TurnRecord.open_log

    def open_damaged(record: TurnRecord) -> Any:
        log = open_log(record)
        del log.entries[3]
        return log

    monkeypatch.setattr(TurnRecord, "open_log", open_damaged)
    *findings, total = show(turn_id, "--verify", status=1)
    assert any(re.match(r"error \S+ at event 3: ", line) for line in findings) and "why" not in findings[0]
    assert re.fullmatch(rf"{len(findings)} findings, [1-9]\d* errors; the tokens were replayed", total)


@pytest.mark.parametrize("option", [(), ("--prompt",), ("--at", "0"), ("--as", "chat"), ("--verify",), ("--follow",)])
def test_unknown_turn(inspector: Inspector, option: tuple[str, ...]) -> None:
    done = run_piped("resp_unknown", *option)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: 404: There is no turn with the id 'resp_unknown'.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a turn by its ID, or use --last or --follow"),
        (("resp_1", "--last"), "--last names a turn"),
        (("--last", "--follow"), "--last names a turn"),
        (("--last", "--prompt", "--verify"), "use one of"),
        (("--last", "--as", "json", "--at", "1"), "use one of"),
        (("--follow", "--prompt"), "use one of"),
        (("..",), "an ID is that of a response"),
        (("--last", "--diff", ""), "an ID is that of a response"),
        (("--last", "--at", "-1"), "--at"),
        (("--last", "--as", "yaml"), "--as"),
    ],
)
def test_options_that_exclude_each_other(arguments: tuple[str, ...], message: str) -> None:
    done = run_piped(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr


# Following


def start_following(*, errors: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "inspect", "--follow"],
        stdout=subprocess.PIPE,
        stderr=errors,
        encoding="utf-8",
        env=clean_environment(),
    )


def wait_for_poll(inspector: Inspector, num_before: int) -> None:
    """Waits until a command has looked for the last turn, for running ones in both states, and for the next one."""
    records = inspector.server.access_records
    wait_with_progress(
        lambda: sum(each.path == "/v1/inspect/turns" for each in records[num_before:]) >= 4, "the command waits"
    )


def test_running_turn_is_followed_to_its_end(inspector: Inspector) -> None:
    body = {"model": "scripted", "input": "be slow", "stream": True}
    lines = []
    with httpx.stream("POST", f"{inspector.server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
        received = reply.iter_lines()  # the stream closes with this iterator
        next(received)
        process = start_following()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "output_text.delta" in line:
                break
    output, _ = process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 0 and lines[0] == "in_progress\n"
    assert sum("client_left" in line for line in output.splitlines()) == 1, "the ending comes when it is known"
    turn = inspector.get("/turns", limit=1).json()["data"][0]
    assert turn["id"] in lines[3] and turn["ending"]["cause"] == "client_left"


def test_next_turn_is_waited_for(inspector: Inspector) -> None:
    inspector.ask("Search", tools=TOOLS)
    num_before = len(inspector.server.access_records)
    process = start_following()
    wait_for_poll(inspector, num_before)
    turn_id = inspector.ask("Hi")
    output, _ = process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 0 and turn_id in output
    assert "Hello there, how are you?" in output and "\ncompleted: stop_token" in f"\n{output}"


def test_ctrl_c_ends_waiting(inspector: Inspector) -> None:
    inspector.ask("Hi")
    num_before = len(inspector.server.access_records)
    process = start_following(errors=subprocess.PIPE)
    wait_for_poll(inspector, num_before)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=HANG_TIMEOUT_S) == ("", "") and process.returncode == 130


def test_server_that_stops_while_a_turn_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with serve(SCRIPT, inspect="memory") as server:
        write_key(server)
        body = {"model": "scripted", "input": "be slow", "stream": True}
        with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
            received = reply.iter_lines()  # the stream closes with this iterator
            next(received)
            process = start_following(errors=subprocess.PIPE)
            assert process.stdout is not None
            for line in process.stdout:
                if "output_text.delta" in line:
                    break
            server.stop()
            _, errors = process.communicate(timeout=HANG_TIMEOUT_S)
    assert process.returncode == 1 and errors.startswith("Error: ") and errors.count("\n") == 1
    assert "Traceback" not in errors and ("no server answers at" in errors or "the connection" in errors)


# Without a record, a server, or a key


def test_turn_without_a_record_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with serve(SCRIPT, inspect="off", store_file=tmp_path / "db") as server, Inspector(server) as inspector:
        write_key(server)
        turn_id = inspector.ask("Hi", store=True)
        lines = show(turn_id)
        reason = NOT_RECORDED
        assert lines[0].startswith("completed: stop_token") and lines[5] == reason
        assert {line[:11].strip() for line in lines[7:]} == {"-", ""}, "no time is known"
        assert "state and inputs: not recorded" in show(turn_id, "--at", "2")
        done = run_piped(turn_id, "--prompt")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {reason}\n")
        assert {f"request: {reason}", "output: the same", f"prompt: {reason}"} <= set(show(turn_id, "--diff", turn_id))


def test_server_without_turns_and_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with serve(SCRIPT, inspect="memory") as server:
        write_key(server)
        done = run_piped("--last")
        assert (done.returncode, done.stderr) == (1, "Error: the server has no turn of this key yet\n")
    for arguments, variables in (
        (("--url", "http://127.0.0.1:9"), {}),
        ((), {"ANTIPHON_URL": "http://127.0.0.1:9"}),
    ):
        done = run_piped("--last", *arguments, **variables)
        name = "--url" if arguments else "ANTIPHON_URL"
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert f"no server answers at http://127.0.0.1:9/v1 ({name}): " in done.stderr and "--url" in done.stderr


def test_key_of_a_file_and_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    key_file = tmp_path / "key"
    key_file.write_text("sk-first\n")
    with (
        serve(SCRIPT, api_keys=("sk-first", "sk-second"), inspect="memory") as server,
        Inspector(server, "sk-first") as first,
    ):
        turn_id = first.ask("Hi")
        done = run_piped("--last", "--url", server.root, "--api-key-file", str(key_file))
        assert done.returncode == 0 and turn_id in done.stdout
        done = run_piped(turn_id, "--url", server.root, ANTIPHON_API_KEY="sk-second")
        assert done.returncode == 1 and done.stderr.startswith("Error: 404: "), "a turn of another key"
        done = run_piped(turn_id, "--url", server.root, ANTIPHON_API_KEY="sk-wrong")
        assert done.stderr.startswith("Error: 401: ") and "sk-wrong" not in done.stderr
