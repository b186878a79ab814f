"""A turn as of one event: what the event changed, what the state machine did, and the response so far."""

from contextlib import aclosing

from antiphon.console.client import ReplyFailedError
from antiphon.console.inspect.api import InspectApi
from antiphon.console.inspect.line_output import LineOutput
from antiphon.console.inspect.response_fold import ResponseFold
from antiphon.console.inspect.timeline import format_time, group_steps
from antiphon.kit.json_values import Json, as_list, as_objects, as_table
from antiphon.kit.snapshot.event_lines import format_event, format_response
from antiphon.kit.snapshot.id_numbers import IdNumbers


async def write_moment(api: InspectApi, turn_id: str, number: int, output: LineOutput) -> None:
    """Writes the turn as of event `number`. Raises `ReplyFailedError` if it has no such event."""
    fold, numbers, state_before, num_events = ResponseFold(), IdNumbers(), None, 0
    async with aclosing(group_steps(api.read_events(turn_id))) as steps:
        async for step in steps:
            for row in step:
                event, num_events = as_table(row.get("event")), num_events + 1
                place, line = fold.add_event(event), format_event(event, numbers)
                if num_events <= number:
                    continue
                output.write_line(f"event {number}, step {row.get('step')}, {format_time(step[-1])} ms", "dim")
                output.write_wrapped(line.partition("\n")[0])
                output.write_line(f"changes {place or 'nothing'}")
                _write_cells(state_before, step[-1], await api.fetch_table(), output)
                _write_response(fold.build_response(), numbers, output)
                return
            state_before = step[-1].get("state")
    has = f"events 0 to {num_events - 1}" if num_events else "no events yet"
    raise ReplyFailedError(f"the turn has no event {number}: it has {has}")


def _write_cells(state_before: object, row: Json, table: Json, output: LineOutput) -> None:
    """Writes the states, inputs and verbs of a step."""
    if row.get("state") is None:
        output.write_line("state and inputs: not recorded")
        return
    output.write_line(f"state {state_before or '(begin)'} → {row['state']}, inputs {_join(row.get('inputs'))}")
    cells = {(str(cell.get("state")), str(cell.get("input"))): cell for cell in as_objects(table.get("cells"))}
    for names in as_list(row.get("cells")):
        state, symbol, *_ = [*map(str, as_list(names)), "?", "?"]
        cell = cells.get((state, symbol), {})
        guard = f", if {cell['guard']}" if cell.get("guard") else ""
        output.write_line(f"  {state} {symbol} → {cell.get('next', '?')}{guard}: {_join(cell.get('verbs'))}")
    if tokens := as_list(as_table(row.get("detail")).get("tokens")):
        output.write_line(f"tokens {' '.join(map(str, tokens))}")


def _join(names: object) -> str:
    return ", ".join(map(str, as_list(names))) or "none"


def _write_response(response: Json, numbers: IdNumbers, output: LineOutput) -> None:
    output.write_line("response so far:", "dim")
    for line in format_response(numbers.number_ids(response)).split("\n"):
        output.write_wrapped(line)
