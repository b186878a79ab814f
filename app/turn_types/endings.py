"""Why a turn ended: one value, set exactly once, wherever in the code the cause is known."""

from typing import Literal, get_args

from msgspec import Struct

Cause = Literal[
    # The model
    "stop_token",
    "stop_string",
    "stopped_in_call",
    "call_cannot_complete",
    # Limits of the request, the model and the server
    "max_output_tokens",
    "context_full",
    "repetition",
    "max_tool_calls",
    "single_call",
    "nothing_generated",
    # Compaction
    "compacted",
    "compaction_empty",
    # The client
    "client_left",
    "cancelled",
    "steered",
    "deadline",
    # Faults
    "rejected",
    "engine_fault",
    "store_unavailable",
    "server_shutdown",
    "server_restarted",
    "server_bug",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)


class Ending(Struct, frozen=True):
    """Why a turn ended.

    `detail` depends on the cause: the id of the stop token, the stop string, the limit that was reached, or the code
    of the error. Only a stop string is content; the access log and the metrics have the cause alone.

    Example: `Ending("max_output_tokens", "512")`.
    """

    cause: Cause
    detail: str = ""


DESCRIPTIONS: dict[Cause, str] = {
    "stop_token": "The model ended its turn.",
    "stop_string": "A stop string of the request appeared in the output.",
    "stopped_in_call": "The model ended its turn inside the call of a tool; the call is not complete.",
    "call_cannot_complete": "The model wrote a call of a tool that no longer can become a valid one.",
    "max_output_tokens": "The output reached the limit of tokens that the request or the model's settings have.",
    "context_full": "The prompt and the output filled the model's context.",
    "repetition": "The output had begun to repeat itself, and the model's settings limit this.",
    "max_tool_calls": "The server ran the number of tools that the turn may call.",
    "single_call": "The request allows one call of a tool, and the model has made it.",
    "nothing_generated": "The request asked for no output.",
    "compacted": "The request asked for a summary of the conversation, which is complete.",
    "compaction_empty": "The model wrote an empty summary of the conversation.",
    "client_left": "The client closed the connection.",
    "cancelled": "The client cancelled the turn, or its response was deleted.",
    "steered": "The client sent more input, and the turn ended between two items.",
    "deadline": "The turn was not done by the client's deadline.",
    "rejected": "The request, or the prompt of a later round, cannot be served.",
    "engine_fault": "The engine failed, or refused the request.",
    "store_unavailable": "The server could not store what must be stored before the turn continues.",
    "server_shutdown": "The server was shut down.",
    "server_restarted": "The server process stopped before the turn was complete.",
    "server_bug": "The server has a bug; its log has the trace.",
}
"""One sentence for each cause, for people."""


def ending_of_fault(code: str) -> Ending:
    """Returns the ending of a turn whose engine reports an error with this code."""
    return Ending("deadline" if code == "deadline_exceeded" else "engine_fault", code)
