"""The items of a round as later prompts show them."""

import json
from collections.abc import Sequence
from itertools import islice
from typing import TypeGuard

from antiphon.app.turns.core.rounds import Round, ServerCall
from antiphon.app.turns.prompts.prompt_token_cache import to_input
from antiphon.events.hosted import (
    McpApprovalRequest,
    McpListTools,
    ServerCallItem,
    ToolSearchCall,
    ToolSearchOutput,
)
from antiphon.events.inputs import AnyInput, InputFunctionCall, InputFunctionOutput
from antiphon.events.items import Compaction
from antiphon.events.response import OutputItem
from antiphon.harmony.prompt.hosted_items import HostedCall, shown_call

_UNSPOKEN_ITEMS = McpListTools | Compaction | ToolSearchOutput


def list_spoken(done: Round, output: Sequence[OutputItem]) -> tuple[OutputItem | AnyInput, ...]:
    """Returns the items that the model wrote in this round. Calls that the server ran are without their outputs.

    `output` is that of the response. A call that was cut off is shown as far as it was written; a search among
    deferred tools that was cut off is left out.
    """
    calls, spoken = iter(done.calls), list[OutputItem | AnyInput]()
    for item in output[done.first_item :]:
        if _is_server_search(item):
            spoken += [_show_call(call, item.call_id) for call in islice(calls, 1)]
        elif isinstance(item, ServerCallItem):
            call = next(calls, None)
            # The last one was cut before it was whole, so it is none of the calls.
            spoken.append(_show_cut_call(item) if call is None else _show_call(call, item.id))
        elif isinstance(item, McpApprovalRequest):
            spoken.append(
                InputFunctionCall(
                    call_id=item.id, namespace=item.server_label, name=item.name, arguments=item.arguments
                )
            )
        elif not isinstance(item, _UNSPOKEN_ITEMS):
            spoken.append(item)
    return tuple(spoken)


def list_items(done: Round, output: Sequence[OutputItem]) -> tuple[AnyInput, ...]:
    """Returns the items that the next prompt shows: those that the model wrote, then the outputs of its calls.

    Approved calls run before the first round. They are shown as they are in later turns: as items, each of which
    stands in the place of the request for its approval.
    """
    if not done.is_admitted:
        return to_input([item for item in output[done.first_item :] if isinstance(item, ServerCallItem)])
    spoken = list_spoken(done, output)
    calls = [item for item in spoken if isinstance(item, InputFunctionCall)]
    outputs = [
        InputFunctionOutput(call_id=shown.call_id, output=call.shown_output)
        for shown, call in zip(calls, done.calls, strict=True)
    ]
    return (*to_input(spoken), *outputs)


def _is_server_search(item: OutputItem) -> TypeGuard[ToolSearchCall]:
    return isinstance(item, ToolSearchCall) and item.execution == "server"


def _show_call(call: ServerCall, item_id: str) -> InputFunctionCall:
    """Returns a call as the model wrote it. Its id is the model's own, if it wrote one, else `item_id`."""
    start = call.call
    is_code = start.kind == "code_interpreter"
    return InputFunctionCall(
        call_id=start.approval_request_id or start.call_id or item_id,
        namespace=start.server_label or None,
        name=start.name,
        arguments=json.dumps({"code": call.arguments}, ensure_ascii=False) if is_code else call.arguments or "{}",
    )


def _show_cut_call(item: OutputItem) -> InputFunctionCall:
    """Returns the beginning of a call as later turns show it."""
    [shown] = to_input((item,))
    assert isinstance(shown, HostedCall)
    return shown_call(shown)
