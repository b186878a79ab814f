"""Decides why and when a turn ends, or continues with another round."""

from typing import Literal

from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.turn_rules import TurnRules
from antiphon.app.turns.core.rounds import Round
from antiphon.state.table import State

RoundEnd = Literal["stop", "length", "repetition", "stopped", "limit"]
"""`stopped`: a stop string has matched, or a call has failed; `limit`: the round may have no more calls."""


class TurnEnd:
    """The end of a turn, and what leads to it. It answers questions; `TurnCore` acts on them."""

    def __init__(self, rules: TurnRules) -> None:
        self._rules = rules
        self.ending: Ending | None = None
        """Why the turn has ended."""
        self.round_end: RoundEnd | None = None
        """How the generation of the round has ended."""
        self.is_round_over = False
        """True if the turn continues with another round."""
        self.stop_id: int | None = None
        self.steer_requested = self._steer_if_called = False

    def conclude(self, ending: Ending) -> None:
        """Records why the turn has ended. It is called once."""
        if self.ending is not None:
            raise RuntimeError(f"the turn has ended before: {self.ending.cause}, now {ending.cause}")
        self.ending = ending

    def start_round(self) -> None:
        """Continues with another round."""
        self.round_end, self.is_round_over = None, False

    def defer_steer(self) -> None:
        """Handles the last output of a round without calls: a turn that ends is not steered, unless a call follows."""
        self.steer_requested, self._steer_if_called = False, self.steer_requested

    def note_call(self) -> None:
        """Handles a whole call that the server runs."""
        self.steer_requested = self.steer_requested or self._steer_if_called

    def may_steer(self, state: State, current: Round) -> bool:
        """Tells whether the turn ends now because the client has sent more input."""
        return self.steer_requested and state is State.IDLE and not current.num_client_calls

    def reaches_limit(self, current: Round, *, can_call: bool) -> bool:
        """Tells whether the model may make no more calls in this round."""
        return (self._rules.single_call and current.num_calls > 0) or (bool(current.calls) and not can_call)

    def continues(self, state: State, current: Round) -> bool:
        """Tells whether another round follows the one that has ended."""
        is_complete = state not in (State.CALL, State.TOOL) and self.round_end != "stopped"
        return is_complete and bool(current.calls) and not current.num_client_calls

    def find_cut(self, current: Round, num_generated: int) -> Ending:
        """Returns why a turn ends for which nothing is left. `num_generated`: the tokens of all rounds."""
        limit = self._rules.max_tokens
        if limit is not None and num_generated >= limit:
            return Ending("max_output_tokens", str(limit))
        num_tokens = len(current.generated_tokens)
        if self.round_end == "repetition":
            return Ending("repetition", str(num_tokens))
        return Ending("context_full", str(current.num_prompt_tokens + num_tokens))

    def find_ending(self, state: State, stop_string: str | None) -> Ending:
        """Returns why a turn ends whose output is whole, unless the model is inside a call."""
        if state in (State.CALL, State.TOOL):
            return Ending("stopped_in_call")
        if self.round_end == "limit":
            if self._rules.single_call:
                return Ending("single_call", "1")
            limit = self._rules.max_tool_calls
            return Ending("max_tool_calls", "" if limit is None else str(limit))
        if stop_string is not None:
            return Ending("stop_string", stop_string)
        return Ending("stop_token", "" if self.stop_id is None else str(self.stop_id))
