"""Completes the figures of a turn from its core."""

from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.turns.core.rounds import list_called_tools
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.state.table import State


def finish_stats(stats: TurnStats, core: TurnCore, now: float) -> None:
    """Sets what is known once the turn has ended. `now` is that time; further calls change nothing."""
    if stats.times.ended is not None:
        return
    response = core.machine.response
    stats.ending, stats.times.ended = core.end.ending, now
    stats.status = "refused" if core.machine.state is State.NEW else str(response.status)
    if stats.status == "refused":  # the engine never had it
        return
    usage = core.figures.build_usage()
    stats.input_tokens, stats.output_tokens = usage.input_tokens, usage.output_tokens
    stats.cached_tokens = usage.input_tokens_details.cached_tokens
    stats.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
    stats.error_code = "" if response.error is None else response.error.code
    stats.tools = list_called_tools(core.machine.output)
