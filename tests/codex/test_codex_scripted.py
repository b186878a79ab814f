"""The real Codex on the scripted engine: calls that it must execute, calls that it must not, errors and retries.

Every reply but the last requires text that only Codex can have added to the prompt, so that a reply proves that this
text was sent back.
"""

import json

import pytest

from antiphon.app.turns.timeouts import TurnTimeouts
from tests.codex.codex_process import API_KEY, CodexCli
from tests.codex.recorder import TrafficRecorder
from tests.codex.replies import COMMAND, LAST_REPLY, NO_RETRIES, ONE_RETRY, make_call, make_command_call, make_reply
from tests.conftest import StartServer
from tests.serving import scripted_registry

EXIT_TEXT = "Process exited with code 0"
UNKNOWN_AGENT_ID = "01a1fcd0-17b9-7540-a778-cfbd2154baea"


def test_command_is_executed_and_its_output_is_sent_back(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        make_reply("run", "<think>\nI run it.\n</think>\n\n", make_command_call(COMMAND)),
        LAST_REPLY,
    ]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Run it.")
    assert run.exit_code == 0
    [command] = run.items_of_type("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("antiphon-7391\n", 0)
    assert run.final_message == "It says antiphon-7391."
    first, second = recorder.turns
    done_items = [event["item"] for event in first.events if event["type"] == "response.output_item.done"]
    [output] = second.items_of_type("function_call_output")
    assert output["output"].endswith("Output:\nantiphon-7391\n") and EXIT_TEXT in output["output"]
    new_items = second.input[len(first.input) :]
    assert [item["type"] for item in new_items] == ["reasoning", "function_call", "function_call_output"]
    assert [item["id"] for item in new_items[:2]] == [item["id"] for item in done_items]
    assert new_items[0]["content"] == done_items[0]["content"]
    assert {key: new_items[1][key] for key in ("call_id", "name", "arguments")} == {
        key: done_items[1][key] for key in ("call_id", "name", "arguments")
    }
    [completed] = run.events_of_type("turn.completed")
    usages = [exchange.events[-1]["response"]["usage"] for exchange in recorder.turns]
    assert completed["usage"]["input_tokens"] == sum(usage["input_tokens"] for usage in usages)
    assert completed["usage"]["output_tokens"] == sum(usage["output_tokens"] for usage in usages)


REPORT = "It says antiphon-7391."
DIALECT_SCRIPTS = [
    pytest.param(
        "hermes", "<think>\nI run it.\n</think>\n\nLet me see.\n" + make_command_call(COMMAND), REPORT, id="hermes"
    ),
    pytest.param(
        "qwen3-coder",
        f"Let me see.\n<tool_call>\n<function=exec_command>\n<parameter=cmd>\n{COMMAND}\n</parameter>\n</function>\n</tool_call>",
        REPORT,
        id="qwen3-coder",
    ),
    pytest.param(
        "gpt-oss",
        "<|channel|>analysis<|message|>I run it.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>"
        + json.dumps({"cmd": COMMAND})
        + "<|call|>",
        f"<|channel|>final<|message|>{REPORT}<|return|>",
        id="gpt-oss",
    ),
]


@pytest.mark.parametrize(("dialect", "call_text", "report_text"), DIALECT_SCRIPTS)
def test_command_is_executed_in_every_dialect(
    codex: CodexCli,
    start_server: StartServer,
    recorder: TrafficRecorder,
    dialect: str,
    call_text: str,
    report_text: str,
) -> None:
    script = [make_reply("report", report_text, when="antiphon-7391"), make_reply("run", call_text), LAST_REPLY]
    run = codex.exec(start_server(scripted_registry(script, dialect=dialect), wrap_app=recorder.wrap_app), "Run it.")
    assert run.exit_code == 0
    [command] = run.items_of_type("command_execution")
    assert command["aggregated_output"] == "antiphon-7391\n"
    assert [item["text"] for item in run.items_of_type("agent_message")] == ["Let me see.", REPORT]


def test_resumed_session_sends_the_previous_turn(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("again", "I said: It says antiphon-7391.", when="What did you say?"),
        make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        make_reply("run", make_command_call(COMMAND)),
        LAST_REPLY,
    ]
    server = start_server(script, wrap_app=recorder.wrap_app)
    assert codex.exec(server, "Run it.").exit_code == 0
    run = codex.exec(server, "What did you say?", resume=True)
    assert run.exit_code == 0 and run.final_message == "I said: It says antiphon-7391."
    _, report, again = recorder.turns
    [done_item] = [event["item"] for event in report.events if event["type"] == "response.output_item.done"]
    [sent_item] = [item for item in again.items_of_type("message") if item["role"] == "assistant"]
    assert (sent_item["id"], sent_item["content"][0]["text"]) == (done_item["id"], "It says antiphon-7391.")


def test_reasoning_summary_is_shown(codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder) -> None:
    script = [make_reply("think", "<think>\nA greeting is due.\n</think>\n\nHello.")]
    run = codex.exec(start_server(script, wrap_app=recorder.wrap_app, reasoning_output="summary"), "Hi.")
    assert run.exit_code == 0 and run.final_message == "Hello."
    assert [item["text"] for item in run.items_of_type("reasoning")] == ["A greeting is due."]


def test_two_parallel_calls_are_both_executed(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("report", "Both were written.", when="second-42"),
        make_reply(
            "run", make_command_call("echo first-$((20 + 1))"), "\n", make_command_call("echo second-$((40 + 2))")
        ),
        LAST_REPLY,
    ]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Run both.")
    assert run.exit_code == 0 and run.final_message == "Both were written."
    outputs = {command["aggregated_output"] for command in run.items_of_type("command_execution")}
    assert outputs == {"first-21\n", "second-42\n"}
    first, second = recorder.turns
    new_items = second.input[len(first.input) :]
    assert [item["type"] for item in new_items] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert new_items[0]["call_id"] == new_items[2]["call_id"] and new_items[1]["call_id"] == new_items[3]["call_id"]
    assert "first-21" in new_items[2]["output"] and "second-42" in new_items[3]["output"]
    assert second.status == 200


def test_namespaced_call_reaches_its_tool(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("report", "There is no such agent.", when="<tool_response>"),
        make_reply("close", make_call("multi_agent_v1__close_agent", target=UNKNOWN_AGENT_ID)),
        LAST_REPLY,
    ]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Close it.")
    assert run.exit_code == 0 and run.final_message == "There is no such agent."
    second = recorder.turns[1]
    [call_item] = second.items_of_type("function_call")
    assert (call_item["namespace"], call_item["name"]) == ("multi_agent_v1", "close_agent")
    [output] = second.items_of_type("function_call_output")
    assert output["output"] == f"agent with id {UNKNOWN_AGENT_ID} not found", (
        "the tool's own error, not 'unsupported call'"
    )


def test_truncated_call_is_not_executed(codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder) -> None:
    truncated_call = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "touch never; echo half'
    script = [make_reply("half", "I run it.", truncated_call, finish="length")]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Run it.", *NO_RETRIES)
    assert run.exit_code == 1 and run.events_of_type("turn.failed")
    assert not run.items_of_type("command_execution") and not any(codex.work_folder.iterdir())
    assert [item["text"] for item in run.items_of_type("agent_message")] == ["I run it."]
    [turn] = recorder.turns
    response = turn.events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_unclosed_call_is_retried_and_not_executed(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    """Codex retries, and executes the complete call of the second attempt once."""
    script = [
        make_reply("report", "Done.", when="whole-11"),
        make_reply("half", '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "touch never'),
        make_reply("whole", make_command_call("echo whole-$((10 + 1))")),
        LAST_REPLY,
    ]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Run it.", ONE_RETRY)
    assert run.exit_code == 0 and run.final_message == "Done."
    [command] = run.items_of_type("command_execution")
    assert command["aggregated_output"] == "whole-11\n" and not any(codex.work_folder.iterdir())
    failed_turn, retried_turn, _ = recorder.turns
    assert failed_turn.events[-1]["type"] == "response.failed"
    assert failed_turn.input == retried_turn.input, "a retry sends the same input"


def test_failed_turn_is_shown_as_failed(codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder) -> None:
    fault = {"fault": "the accelerator is on fire", "code": "server_error"}
    script = [make_reply("fault", "Half a sen", fault)]
    run = codex.exec(start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app), "Say something.", ONE_RETRY)
    assert run.exit_code == 1
    [failed] = run.events_of_type("turn.failed")
    assert "the accelerator is on fire" in failed["error"]["message"]
    assert "the accelerator is on fire" in run.events_of_type("error")[0]["message"]
    assert [exchange.events[-1]["type"] for exchange in recorder.turns] == ["response.failed"] * 2, (
        "one attempt and one retry"
    )


def test_overloaded_server_is_retried(codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder) -> None:
    rejection = {"refuse": "too many requests are waiting", "code": "server_is_overloaded", "retryable": True}
    server = start_server(
        [make_reply("full", rejection), make_reply("free", "Here I am.")],
        api_keys=(API_KEY,),
        wrap_app=recorder.wrap_app,
    )
    run = codex.exec(server, "Say something.", ONE_RETRY)
    assert run.exit_code == 0 and run.final_message == "Here I am."
    assert [exchange.status for exchange in recorder.turns] == [429, 200]


def test_wrong_api_key_is_reported(codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder) -> None:
    server = start_server([LAST_REPLY], api_keys=("sk-another",), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Say something.", *NO_RETRIES)
    assert run.exit_code == 1
    assert "Incorrect API key provided." in run.events_of_type("turn.failed")[0]["error"]["message"]


def test_keepalive_events_prevent_an_idle_timeout(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [make_reply("late", {"pause": 3.5}, "At last.")]
    server = start_server(
        script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app, timeouts=TurnTimeouts(keepalive_after_s=0.4)
    )
    run = codex.exec(server, "Think.", *NO_RETRIES, "model_providers.antiphon.stream_idle_timeout_ms=2000")
    assert run.exit_code == 0 and run.final_message == "At last." and not run.events_of_type("error")
    [turn] = recorder.turns
    kinds = [event["type"] for event in turn.events]
    assert kinds.count("response.in_progress") > 5, "the first one and keep-alive events"


def test_idle_timeout_without_keepalive_events(codex: CodexCli, start_server: StartServer) -> None:
    """Shows that only keep-alive events make the previous test pass."""
    script = [make_reply("late", {"pause": 3.5}, "At last.")]
    server = start_server(script, api_keys=(API_KEY,))
    run = codex.exec(server, "Think.", *NO_RETRIES, "model_providers.antiphon.stream_idle_timeout_ms=2000")
    assert run.exit_code == 1
    assert "idle timeout" in run.events_of_type("turn.failed")[0]["error"]["message"]
