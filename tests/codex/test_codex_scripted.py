"""The real Codex on the scripted engine: what a model says becomes what an agent does, or does not do.

Every reply but the last waits for something that only Codex can have put into the prompt, so a reply that is heard
proves that what it waits for came back.
"""

import json

import pytest

from antiphon.app.turns.turn import TurnTimeouts
from tests.codex.codex_process import KEY, Codex
from tests.codex.recorder import Tape
from tests.codex.replies import AGAIN, COMMAND, NOTHING, ONCE, call, reply, run
from tests.conftest import Serve
from tests.serving import scripted_registry

FRAME = "Process exited with code 0"
NOBODY = "01a1fcd0-17b9-7540-a778-cfbd2154baea"


def test_a_command_is_executed_and_its_output_comes_back(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [
        reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        reply("run", "<think>\nI run it.\n</think>\n\n", run(COMMAND)),
        NOTHING,
    ]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Run it.")
    assert ran.code == 0
    [command] = ran.items("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("antiphon-7391\n", 0)
    assert ran.final == "It says antiphon-7391."
    first, second = tape.turns
    said = [event["item"] for event in first.events if event["type"] == "response.output_item.done"]
    [output] = second.items("function_call_output")
    assert output["output"].endswith("Output:\nantiphon-7391\n") and FRAME in output["output"]
    came = second.input[len(first.input) :]
    assert [item["type"] for item in came] == ["reasoning", "function_call", "function_call_output"]
    assert [item["id"] for item in came[:2]] == [item["id"] for item in said]
    assert came[0]["content"] == said[0]["content"]
    assert {key: came[1][key] for key in ("call_id", "name", "arguments")} == {
        key: said[1][key] for key in ("call_id", "name", "arguments")
    }
    [done] = ran.of("turn.completed")
    usages = [one.events[-1]["response"]["usage"] for one in tape.turns]
    assert done["usage"]["input_tokens"] == sum(usage["input_tokens"] for usage in usages)
    assert done["usage"]["output_tokens"] == sum(usage["output_tokens"] for usage in usages)


TOLD = "It says antiphon-7391."
SPOKEN = [
    pytest.param("hermes", "<think>\nI run it.\n</think>\n\nLet me see.\n" + run(COMMAND), TOLD, id="hermes"),
    pytest.param(
        "qwen3-coder",
        f"Let me see.\n<tool_call>\n<function=exec_command>\n<parameter=cmd>\n{COMMAND}\n</parameter>\n</function>\n</tool_call>",
        TOLD,
        id="qwen3-coder",
    ),
    pytest.param(
        "gpt-oss",
        "<|channel|>analysis<|message|>I run it.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>"
        + json.dumps({"cmd": COMMAND})
        + "<|call|>",
        f"<|channel|>final<|message|>{TOLD}<|return|>",
        id="gpt-oss",
    ),
]


@pytest.mark.parametrize(("dialect", "spoken", "told"), SPOKEN)
def test_every_dialect_does_the_same(
    codex: Codex, server: Serve, tape: Tape, dialect: str, spoken: str, told: str
) -> None:
    script = [reply("report", told, when="antiphon-7391"), reply("run", spoken), NOTHING]
    ran = codex.exec(server(scripted_registry(script, dialect=dialect), around=tape.around), "Run it.")
    assert ran.code == 0
    [command] = ran.items("command_execution")
    assert command["aggregated_output"] == "antiphon-7391\n"
    assert [item["text"] for item in ran.items("agent_message")] == ["Let me see.", TOLD]


def test_the_next_turn_brings_the_last_one_back(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [
        reply("again", "I said: It says antiphon-7391.", when="What did you say?"),
        reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        reply("run", run(COMMAND)),
        NOTHING,
    ]
    served = server(script, around=tape.around)
    assert codex.exec(served, "Run it.").code == 0
    ran = codex.exec(served, "What did you say?", resume=True)
    assert ran.code == 0 and ran.final == "I said: It says antiphon-7391."
    _, report, again = tape.turns
    [said] = [event["item"] for event in report.events if event["type"] == "response.output_item.done"]
    [came] = [item for item in again.items("message") if item["role"] == "assistant"]
    assert (came["id"], came["content"][0]["text"]) == (said["id"], "It says antiphon-7391.")


def test_reasoning_is_shown_where_it_is_told_as_a_summary(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [reply("think", "<think>\nA greeting is due.\n</think>\n\nHello.")]
    ran = codex.exec(server(script, around=tape.around, reasoning_output="summary"), "Hi.")
    assert ran.code == 0 and ran.final == "Hello."
    assert [item["text"] for item in ran.items("reasoning")] == ["A greeting is due."]


def test_two_parallel_calls_are_both_executed(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [
        reply("report", "Both were written.", when="second-42"),
        reply("run", run("echo first-$((20 + 1))"), "\n", run("echo second-$((40 + 2))")),
        NOTHING,
    ]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Run both.")
    assert ran.code == 0 and ran.final == "Both were written."
    outputs = {command["aggregated_output"] for command in ran.items("command_execution")}
    assert outputs == {"first-21\n", "second-42\n"}
    first, second = tape.turns
    came = second.input[len(first.input) :]
    assert [item["type"] for item in came] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert came[0]["call_id"] == came[2]["call_id"] and came[1]["call_id"] == came[3]["call_id"]
    assert "first-21" in came[2]["output"] and "second-42" in came[3]["output"]
    assert second.status == 200


def test_a_namespaced_call_reaches_its_tool(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [
        reply("report", "There is no such agent.", when="<tool_response>"),
        reply("close", call("multi_agent_v1__close_agent", target=NOBODY)),
        NOTHING,
    ]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Close it.")
    assert ran.code == 0 and ran.final == "There is no such agent."
    second = tape.turns[1]
    [made] = second.items("function_call")
    assert (made["namespace"], made["name"]) == ("multi_agent_v1", "close_agent")
    [output] = second.items("function_call_output")
    assert output["output"] == f"agent with id {NOBODY} not found", "its own words, not 'unsupported call'"


def test_half_a_call_is_not_executed(codex: Codex, server: Serve, tape: Tape) -> None:
    half = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "touch never; echo half'
    script = [reply("half", "I run it.", half, finish="length")]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Run it.", *ONCE)
    assert ran.code == 1 and ran.of("turn.failed")
    assert not ran.items("command_execution") and not any(codex.work.iterdir())
    assert [item["text"] for item in ran.items("agent_message")] == ["I run it."]
    [turn] = tape.turns
    response = turn.events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_a_call_that_the_model_leaves_open_is_not_executed(codex: Codex, server: Serve, tape: Tape) -> None:
    """Codex asks again, and the whole call of the second attempt is executed once."""
    script = [
        reply("report", "Done.", when="whole-11"),
        reply("half", '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "touch never'),
        reply("whole", run("echo whole-$((10 + 1))")),
        NOTHING,
    ]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Run it.", AGAIN)
    assert ran.code == 0 and ran.final == "Done."
    [command] = ran.items("command_execution")
    assert command["aggregated_output"] == "whole-11\n" and not any(codex.work.iterdir())
    half, whole, _ = tape.turns
    assert half.events[-1]["type"] == "response.failed"
    assert half.input == whole.input, "a retry says the same again"


def test_a_failed_turn_is_shown_as_failed(codex: Codex, server: Serve, tape: Tape) -> None:
    fault = {"fault": "the accelerator is on fire", "code": "server_error"}
    script = [reply("fault", "Half a sen", fault)]
    ran = codex.exec(server(script, api_keys=(KEY,), around=tape.around), "Say something.", AGAIN)
    assert ran.code == 1
    [failed] = ran.of("turn.failed")
    assert "the accelerator is on fire" in failed["error"]["message"]
    assert "the accelerator is on fire" in ran.of("error")[0]["message"]
    assert [one.events[-1]["type"] for one in tape.turns] == ["response.failed"] * 2, "one try and one more"


def test_a_full_server_is_asked_again(codex: Codex, server: Serve, tape: Tape) -> None:
    full = {"refuse": "too many requests are waiting", "code": "server_is_overloaded", "retryable": True}
    served = server([reply("full", full), reply("free", "Here I am.")], api_keys=(KEY,), around=tape.around)
    ran = codex.exec(served, "Say something.", AGAIN)
    assert ran.code == 0 and ran.final == "Here I am."
    assert [one.status for one in tape.turns] == [429, 200]


def test_a_wrong_key_is_shown_as_such(codex: Codex, server: Serve, tape: Tape) -> None:
    served = server([NOTHING], api_keys=("sk-another",), around=tape.around)
    ran = codex.exec(served, "Say something.", *ONCE)
    assert ran.code == 1
    assert "Incorrect API key provided." in ran.of("turn.failed")[0]["error"]["message"]


def test_a_silent_engine_is_survived_by_reminders(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [reply("late", {"pause": 3.5}, "At last.")]
    served = server(script, api_keys=(KEY,), around=tape.around, timeouts=TurnTimeouts(keepalive_after_s=0.4))
    ran = codex.exec(served, "Think.", *ONCE, "model_providers.antiphon.stream_idle_timeout_ms=2000")
    assert ran.code == 0 and ran.final == "At last." and not ran.of("error")
    [turn] = tape.turns
    kinds = [event["type"] for event in turn.events]
    assert kinds.count("response.in_progress") > 5, "one that begins, and reminders"


def test_without_reminders_codex_gives_a_silent_engine_up(codex: Codex, server: Serve) -> None:
    """What the test before this one would not notice: that nothing else keeps Codex waiting."""
    script = [reply("late", {"pause": 3.5}, "At last.")]
    served = server(script, api_keys=(KEY,))
    ran = codex.exec(served, "Think.", *ONCE, "model_providers.antiphon.stream_idle_timeout_ms=2000")
    assert ran.code == 1
    assert "idle timeout" in ran.of("turn.failed")[0]["error"]["message"]
