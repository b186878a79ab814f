"""Statistics of a turn that has ended, for the metrics."""

from antiphon.app.observability.metrics import TurnStats
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.app.turns.turn import Turn


def turn_stats(turn: Turn, processor: OutputProcessor) -> TurnStats:
    """Returns the statistics of a turn that has just ended."""
    finish_reason = processor.machine.response.status if turn.log.entries else "refused"
    return TurnStats(
        finish_reason=str(finish_reason),
        elapsed_s=turn.elapsed,
        time_to_first_token_s=turn.time_to_first_token,
        prompt_tokens=processor.num_prompt_tokens,
        generated_tokens=processor.num_generated_tokens,
    )
