"""Snapshot cases of tools that the server runs: the outputs of a model in the rounds of one turn, and the tools' answers."""

import json
from typing import Any

from antiphon.events.hosted import McpExecutionError, McpHttpError, McpProtocolError
from tests.snapshots.cases import FAULT, WEATHER, WEATHER_CALL
from tests.snapshots.tool_runs import MCP, QUESTION, Reply, ToolCase, ToolRun

ASKING = {**MCP, "require_approval": "always"}
STALL = {"stall": True}
HARBOUR, PARK = "The cafe is at the harbour.", "The other one is in the park."
THOUGHT = "<think>\nLook it up.\n</think>\n\n"
SILENCE_S = 0.3
"""Silence until a keepalive, as in `run_case.KEEPALIVE_AFTER_S`."""


def write_call(query: str, name: str = "maps__find") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'query': query}})}\n</tool_call>"


GPT_CALL = ['<|channel|>commentary to=functions.maps__find<|message|>{"query": "cafe"}', {"pause": 0.05}, "<|call|>"]
CAFE, BAR = write_call("cafe"), write_call("bar")
ANSWER = Reply(["It is at", " the harbour."], when=(HARBOUR,))
FOUND = {"find": [HARBOUR]}


def make_failure(name: str, error: Any, text: str, comment: str) -> ToolCase:
    return ToolCase(name, [Reply([CAFE]), Reply(["I could not find it."], when=(text,))], comment, {"find": [error]})


async def cancel_in_arguments(run: ToolRun) -> None:
    await run.wait_for("mcp_call_arguments.delta")
    cancel(run)


async def cancel_in_run(run: ToolRun) -> None:
    await run.wait_called()
    cancel(run)


async def cancel_between_rounds(run: ToolRun) -> None:
    await run.wait_second_round()
    cancel(run)


async def cancel_in_second_reasoning(run: ToolRun) -> None:
    await run.wait_for("mcp_call.completed", "reasoning_text.delta")
    cancel(run)


def cancel(run: ToolRun) -> None:
    assert run.log is not None
    run.manager.cancel_turn(run.log.id)


async def keep_alive_in_run(run: ToolRun) -> None:
    await run.wait_for("mcp_call_arguments.done", "mcp_call.in_progress")
    run.servers.gate.set()


async def keep_alive_between_rounds(run: ToolRun) -> None:
    await run.wait_for("mcp_call.completed", "in_progress")
    cancel(run)


async def finish_before_the_tool(run: ToolRun) -> None:
    await run.wait_called()
    await run.wait_engine()
    run.servers.gate.set()


async def let_engine_end(run: ToolRun) -> None:
    """Leaves the tool waiting: the engine fails meanwhile."""
    await run.wait_called()


async def steer_in_run(run: ToolRun) -> None:
    await run.wait_called()
    assert run.log is not None
    run.manager.steer_turn(run.log.id)
    run.servers.gate.set()


async def steer_in_arguments(run: ToolRun) -> None:
    await run.wait_for("mcp_call_arguments.delta")
    assert run.log is not None
    run.manager.steer_turn(run.log.id)


async def steer_in_text(run: ToolRun) -> None:
    await run.wait_for("output_text.delta")
    assert run.log is not None
    run.manager.steer_turn(run.log.id)


async def steer_between_rounds(run: ToolRun) -> None:
    await run.wait_second_round()
    assert run.log is not None
    run.manager.steer_turn(run.log.id)


def continue_response(response: dict[str, Any], *items: dict[str, Any]) -> dict[str, Any]:
    return {"previous_response_id": response["id"], "input": list(items) or QUESTION}


def resend_items(response: dict[str, Any], *items: dict[str, Any]) -> dict[str, Any]:
    question = {"role": "user", "content": QUESTION}
    return {"input": [question, *response["output"], *items]}


def resend_without_lists(response: dict[str, Any], *items: dict[str, Any]) -> dict[str, Any]:
    """Returns the input of a client that does not send lists of tools back, so that they are told again."""
    sent = resend_items(response, *items)["input"]
    return {"input": [item for item in sent if item.get("type") != "mcp_list_tools"]}


def answer_request(response: dict[str, Any], *, approve: bool, **fields: Any) -> dict[str, Any]:
    """Returns the item that answers the request for an approval."""
    (request,) = (item for item in response["output"] if item["type"] == "mcp_approval_request")
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}


ASKED = ToolCase("approval_asked", [Reply([THOUGHT, CAFE])], "the turn ends, and the tool is not called", FOUND, {"tools": [ASKING]})  # fmt: skip
CALLED = ToolCase("one_call", [Reply([THOUGHT, CAFE]), Reply([THOUGHT, *ANSWER.output], ANSWER.when)], "", FOUND)
GREETED = ToolCase("greeting", [Reply(["Hello."])])
AGAIN = Reply(["As I said."], when=("As before?",))
AS_BEFORE = {"role": "user", "content": "As before?"}

TOOL_CASES = [
    CALLED,
    ToolCase("two_calls_in_one_round", [Reply([THOUGHT, CAFE, "\n", BAR]), Reply(["Both."], when=(HARBOUR, PARK))],
             "the second one waits for the first", {"find": [HARBOUR, PARK]}),
    ToolCase("calls_in_two_rounds", [Reply([THOUGHT, CAFE]), Reply([THOUGHT, BAR], when=(HARBOUR,)), Reply(["Both."], when=(HARBOUR, PARK))],
             answers={"find": [HARBOUR, PARK]}),
    ToolCase("text_before_and_after_a_call", [Reply(["I look.\n\n", CAFE, "\nA moment.\n"]), ANSWER], answers=FOUND),
    ToolCase("call_then_a_function", [Reply([CAFE, "\n", WEATHER_CALL])], "the turn ends for the client's function", FOUND, {"tools": [MCP, WEATHER]}),
    ToolCase("function_then_a_call", [Reply([WEATHER_CALL, "\n", CAFE])], "the tool runs before the turn ends", FOUND, {"tools": [MCP, WEATHER]}),
    make_failure("tool_reports_an_error", McpExecutionError(content=[{"type": "text", "text": "No such place."}]),
                 "The tool failed:\nNo such place.", "the model reads it"),
    make_failure("tool_server_reports_an_error", McpProtocolError(code=-32602, message="Unknown tool"), "Unknown tool", "the model reads it"),
    make_failure("tool_server_does_not_answer", McpHttpError(code=504, message="The server did not answer within 60 s."),
                 "did not answer", "the model reads it"),
    ASKED,
    ToolCase("approval_given", [ANSWER], "the call runs before the model goes on", FOUND, {"tools": [ASKING]}, earlier=ASKED,
             follow=lambda response: continue_response(response, answer_request(response, approve=True))),
    ToolCase("approval_given_with_all_items", [ANSWER], "", FOUND, {"tools": [ASKING], "store": False}, earlier=ASKED,
             follow=lambda response: resend_without_lists(response, answer_request(response, approve=True))),
    ToolCase("approval_denied", [Reply(["As you like."], when=("Reason: Not now",))], "no call", FOUND, {"tools": [ASKING]}, earlier=ASKED,
             follow=lambda response: continue_response(response, answer_request(response, approve=False, reason="Not now"))),
    ToolCase("approval_denied_with_all_items", [Reply([THOUGHT, "As you like."], when=("did not approve",))], "", FOUND,
             {"tools": [ASKING], "store": False}, earlier=ASKED,
             follow=lambda response: resend_without_lists(response, answer_request(response, approve=False))),
    ToolCase("approval_unanswered", [AGAIN], "the model reads that the call was not approved", FOUND, {"tools": [ASKING]}, earlier=ASKED,
             follow=lambda response: continue_response(response, AS_BEFORE)),
    ToolCase("list_known_by_id", [AGAIN], "the list is not told again", FOUND, earlier=CALLED,
             follow=lambda response: continue_response(response, AS_BEFORE)),
    ToolCase("list_known_by_items", [AGAIN], "the list is not told again", FOUND, {"store": False}, earlier=CALLED,
             follow=lambda response: resend_items(response, AS_BEFORE)),
    ToolCase("max_tool_calls_reached", [Reply([CAFE, "\n", BAR]), Reply([THOUGHT, BAR, "\nAt the harbour."], when=(HARBOUR,))],
             "no more calls are read: a grammar prevents them, which this engine ignores", {"find": [HARBOUR, PARK]}, {"max_tool_calls": 1}),
    ToolCase("max_tool_calls_and_a_function", [Reply([CAFE]), Reply(["I look.\n", BAR, WEATHER_CALL], when=(HARBOUR,))],
             "more calls are ignored, those of functions are not counted", FOUND, {"max_tool_calls": 1, "tools": [MCP, WEATHER]}),
    ToolCase("one_call_a_round", [Reply([CAFE, "\n", BAR]), Reply([BAR, "\n", CAFE], when=(HARBOUR,)), Reply(["Both."], when=(PARK,))],
             "what follows the call of a round is not generated", {"find": [HARBOUR, PARK]}, {"parallel_tool_calls": False}),
    ToolCase("token_limit_inside_arguments", [Reply([CAFE[:-20]], finish="length")], "the tool is not called", FOUND),
    ToolCase("token_limit_while_a_tool_runs", [Reply([CAFE, "\nAnd"], finish="length")], "the turn ends with the result", FOUND,
             waits=True, act=finish_before_the_tool),
    ToolCase("token_limit_in_the_second_round", [Reply([CAFE]), Reply(["It is at the harbour, as I said."], when=(HARBOUR,))],
             "it counts the tokens of all rounds", FOUND, {"max_output_tokens": 70}),
    ToolCase("token_limit_between_rounds", [Reply([CAFE])], "nothing is left for a second round", FOUND, {"max_output_tokens": 59}),
    ToolCase("cancelled_inside_arguments", [Reply([CAFE[:-20], STALL])], "the tool is not called", FOUND, act=cancel_in_arguments),
    ToolCase("cancelled_while_a_tool_runs", [Reply([CAFE])], "", FOUND, waits=True, act=cancel_in_run),
    ToolCase("cancelled_between_rounds", [Reply([CAFE]), Reply([STALL], when=(HARBOUR,))], "", FOUND, act=cancel_between_rounds),
    ToolCase("cancelled_in_the_second_reasoning", [Reply([CAFE]), Reply(["<think>\nAt the", STALL], when=(HARBOUR,))], "", FOUND,
             act=cancel_in_second_reasoning),
    ToolCase("tool_required", [Reply([CAFE]), ANSWER], "in the first round only", FOUND, {"tool_choice": "required"}),
    ToolCase("tool_named", [Reply([CAFE]), ANSWER], "in the first round only", FOUND,
             {"tool_choice": {"type": "mcp", "server_label": "maps", "name": "find"}}),
    ToolCase("background_call", [Reply([THOUGHT, CAFE]), ANSWER], "", FOUND, {"background": True}),
    ToolCase("keepalive_while_a_tool_runs", [Reply([CAFE]), ANSWER], "the stage of the call is repeated", FOUND, waits=True,
             act=keep_alive_in_run, keepalive_after_s=SILENCE_S),
    ToolCase("keepalive_between_rounds", [Reply([CAFE]), Reply([STALL], when=(HARBOUR,))], "then the turn is cancelled", FOUND,
             act=keep_alive_between_rounds, keepalive_after_s=SILENCE_S),
    ToolCase("tool_that_is_not_there",
             [Reply([write_call("cafe", "maps__drive")]), Reply(["I cannot drive."], when=("has no tool",))],
             "the model reads that the server has no such tool", FOUND),
    ToolCase("arguments_that_are_no_json",
             [Reply(["<|channel|>commentary to=functions.maps__find<|message|>the cafe<|call|>"]),
              Reply(["<|channel|>final<|message|>I could not find it."], when=("not a JSON object",))],
             "the tool is not called", FOUND, dialect="gpt-oss"),
    ToolCase("call_without_arguments", [Reply(['<tool_call>\n{"name": "maps__find", "arguments": {}}\n</tool_call>']), ANSWER], "", FOUND),
    ToolCase("model_stops_inside_a_call", [Reply([CAFE[:-20]])], "the tool is not called", FOUND),
    ToolCase("engine_fault_while_a_tool_runs", [Reply([CAFE, {"pause": 0.05}, FAULT])], "the call is given up", FOUND, waits=True, act=let_engine_end),
    ToolCase("engine_fault_in_the_second_round", [Reply([CAFE]), Reply(["It is", FAULT], when=(HARBOUR,))], "", FOUND),
    ToolCase("engine_refuses_the_second_round", [Reply([CAFE]), Reply([{"refuse": "full", "code": "server_is_overloaded"}], when=(HARBOUR,))], "", FOUND),
    ToolCase("call_that_is_not_stored", [Reply([CAFE, STALL])], "the tool is not called, and the engine need not go on", FOUND, given_up=True),
    ToolCase("steered_while_a_tool_runs", [Reply([CAFE])], "the turn ends with the result", FOUND, waits=True, act=steer_in_run),
    ToolCase("steered_while_the_model_goes_on", [Reply([CAFE, STALL])], "it need not go on", FOUND, waits=True, act=steer_in_run),
    ToolCase("steered_before_the_token_that_ends_a_call", [Reply(GPT_CALL)], "the turn ends with the result", FOUND, dialect="gpt-oss",
             act=steer_in_arguments),
    ToolCase("steered_before_the_last_token", [Reply(["It is at", {"pause": 0.05}, " the harbour."])], "the answer is whole", FOUND,
             act=steer_in_text),
    ToolCase("steered_between_rounds", [Reply([CAFE]), Reply([STALL], when=(HARBOUR,))], "", FOUND, act=steer_between_rounds),
    ToolCase("stop_string_before_a_call", [Reply(["I END", CAFE])], "the tool is not called", FOUND, {"stop": ["END"]}),
    ToolCase("stop_string_after_a_call", [Reply([CAFE, "\nI look. END and", " more"])], "the turn ends with the result", FOUND,
             {"stop": ["END"]}, waits=True, act=finish_before_the_tool),
]  # fmt: skip
