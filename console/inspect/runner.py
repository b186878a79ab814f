"""Runs `antiphon inspect`: finds the turn, and writes what was asked for."""

import asyncio
import sys
from contextlib import aclosing

import msgspec

from antiphon.console.client import ReplyFailedError
from antiphon.console.inspect.api import RUNNING_TURN_STATUSES, InspectApi, is_running, parse_object
from antiphon.console.inspect.comparison import write_comparison
from antiphon.console.inspect.line_output import LineOutput
from antiphon.console.inspect.moment import write_moment
from antiphon.console.inspect.summary import write_summary
from antiphon.console.inspect.timeline import write_prompt, write_timeline
from antiphon.kit.json_values import Json, as_objects

EXPORTS = ("test", "script", "cassette", "curl", "python")
"""Forms that the server writes as files."""
TURN_POLL_INTERVAL_S = 0.5
"""Time between two looks for a turn that has not begun."""


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The request of the command line. At most one of the fields from `at` on is set."""

    turn_id: str | None = None
    """None: the last turn, or with `follow` the one that runs or the next."""
    follow: bool = False
    at: int | None = None
    prompt: bool = False
    form: str | None = None
    other_id: str | None = None
    verify: bool = False


async def inspect_turn(api: InspectApi, options: InspectOptions, output: LineOutput) -> int:
    """Writes what the options ask for. Returns the exit status. Raises `ReplyFailedError`."""
    if options.follow:
        await _follow_turn(api, options.turn_id or await _wait_for_turn(api), output)
        return 0
    turn_id = options.turn_id or await api.find_last_turn()
    if turn_id is None:
        raise ReplyFailedError("the server has no turn of this key yet")
    if options.verify:
        return await _verify_turn(api, turn_id, output)
    if options.at is not None:
        await write_moment(api, turn_id, options.at, output)
    elif options.prompt:
        await write_prompt(api.read_prompt(turn_id), output)
    elif options.other_id is not None:
        await write_comparison(api, turn_id, options.other_id, output)
    elif options.form is not None:
        await _write_form(api, turn_id, options.form, output)
    else:
        write_summary(await api.fetch_turn(turn_id), output)
        await write_timeline(api.read_events(turn_id), output)
    return 0


async def _wait_for_turn(api: InspectApi) -> str:
    """Returns the turn that runs, the last of several, else waits for the next one."""
    last = await api.find_last_turn()
    for status in RUNNING_TURN_STATUSES[::-1]:
        if (running := await api.find_last_turn(status)) is not None:
            return running
    while True:
        found = await api.find_last_turn()
        if found is not None and found != last:
            return found
        await asyncio.sleep(TURN_POLL_INTERVAL_S)


async def _follow_turn(api: InspectApi, turn_id: str, output: LineOutput) -> None:
    turn = await api.fetch_turn(turn_id)
    write_summary(turn, output)
    await write_timeline(api.follow_events(turn_id), output)
    if is_running(turn):
        turn = await api.fetch_turn(turn_id)
        write_summary(turn, output)
        if is_running(turn):
            raise ReplyFailedError("the events of the turn ended before the turn did")


async def _write_form(api: InspectApi, turn_id: str, form: str, output: LineOutput) -> None:
    if form in EXPORTS:
        _write_file(await api.fetch_part(turn_id, f"export/{form}"), output)
        return
    if form == "json":
        output.write_json(await api.fetch_turn(turn_id))
    rows = api.read_events(turn_id) if form == "json" else api.read_reading(turn_id, form)
    async with aclosing(rows):
        async for row in rows:
            output.write_json(row)


def _write_file(content: bytes, output: LineOutput) -> None:
    """Writes a file: exactly as it is into a pipe or a file, as text that no terminal obeys into a terminal."""
    if output.columns is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        output.write_text(content.decode(errors="replace"))


async def _verify_turn(api: InspectApi, turn_id: str, output: LineOutput) -> int:
    """Writes the findings. Returns 1 if one is an error."""
    found = parse_object(await api.fetch_part(turn_id, "findings"))
    if not isinstance(found.get("data"), list):
        raise ReplyFailedError("the server sent no list of findings")
    findings = as_objects(found["data"])
    for each in findings:
        output.write_wrapped(_describe_finding(each))
    num_errors = sum(each.get("level") == "error" for each in findings)
    note = "" if found.get("complete") is True else "; the turn has not ended"
    replay = found.get("replay")
    if isinstance(replay, dict) and found.get("complete") is True:
        is_checked = replay.get("checked") is True
        note += "; the tokens were replayed" if is_checked else f"; not replayed: {replay.get('reason')}"
    output.write_line(f"{len(findings)} findings, {num_errors} errors{note}", "bad" if num_errors else "good")
    return 1 if num_errors else 0


def _describe_finding(each: Json) -> str:
    place = "" if each.get("event") is None else f" at event {each['event']}"
    subject = f" {each['subject']}:" if each.get("subject") else ""
    times = f" ({each['count']} times)" if each.get("count") not in (None, 1) else ""
    head = f"{each.get('level')} {each.get('code')}{place}:{subject}"
    return f"{head} expected {each.get('expected')}, but got {each.get('actual')}{times}; {each.get('why')}"
