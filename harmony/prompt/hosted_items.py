"""Earlier calls of hosted tools, as the model reads them: calls of functions, with outputs as text.

A request to approve a call is shown where its call is. One that has no call is shown as a call whose output tells why.
This module does not know which tools the server runs now, or how names are written for the model.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from msgspec import structs

from antiphon.events.hosted_inputs import (
    InputApprovalRequest,
    InputApprovalResponse,
    InputCodeCall,
    InputCodeOutput,
    InputFileResult,
    InputFileSearchCall,
    InputHostedItem,
    InputMcpCall,
    InputMcpList,
    InputSearchAction,
    InputWebSearchCall,
)
from antiphon.events.inputs import (
    AnyInput,
    InputCall,
    InputFunctionCall,
    InputFunctionOutput,
    InputOutput,
    InputToolSearchCall,
    InputToolSearchOutput,
)
from antiphon.events.result_images import split_output
from antiphon.harmony.prompt.async_calls import is_from_client, is_server_search

INTERRUPTED_OUTPUT = "The call was interrupted."
FAILURE_PREFIX = "The call failed: "
"""Begins what the model reads of a call that has failed."""
FAILED_OUTPUT = "The call failed."
NOT_APPROVED_OUTPUT = "The user did not approve this call."
NOT_RUN_OUTPUT = "The approved call was not run."
LOST_OUTPUT = "The results are no longer available."
EMPTY_OUTPUT = "No results were found."
_UNFINISHED = frozenset(("in_progress", "searching", "interpreting", "calling", "incomplete"))
"""Statuses of a call that has no outcome, and never gets one: earlier calls do not continue."""

HostedCall = InputMcpCall | InputWebSearchCall | InputCodeCall | InputFileSearchCall


def show_hosted_items(items: Sequence[AnyInput]) -> tuple[AnyInput, ...]:
    """Returns the items with those of hosted tools as calls and outputs of functions."""
    if not any(isinstance(item, InputHostedItem) or is_server_search(item) for item in items):
        return tuple(items)
    return tuple(_HostedItems(items).convert_items())


def find_newest_answers(items: Sequence[AnyInput]) -> dict[str, InputApprovalResponse]:
    """Returns the responses after the last item of the model whose calls have not run, in their order."""
    answers, run_ids = _find_answers(items), find_run_ids(items)
    newest = reversed(list(takewhile(_is_newest, reversed(items))))
    return {
        item.approval_request_id: item
        for item in newest
        if isinstance(item, InputApprovalResponse)
        and answers[item.approval_request_id] is item
        and item.approval_request_id not in run_ids
    }


def find_run_ids(items: Sequence[AnyInput]) -> frozenset[str]:
    """Returns the ids of the requests whose calls have run."""
    ids = (item.approval_request_id for item in items if isinstance(item, InputMcpCall))
    return frozenset(filter(None, ids))


def find_approved_calls(items: Sequence[AnyInput]) -> dict[str, InputApprovalRequest]:
    """Returns the requests that the newest items approve, by id, in the order of the responses.

    The newest items are those after the last one of the model, and the calls have not run yet. The server runs them
    before the model continues, so neither the requests nor the responses are shown.
    """
    requests = {item.id: item for item in items if isinstance(item, InputApprovalRequest)}
    answers = find_newest_answers(items)
    return {
        request_id: requests[request_id]
        for request_id, answer in answers.items()
        if answer.approve and request_id in requests
    }


def find_open_approvals(items: Sequence[AnyInput]) -> frozenset[str]:
    """Returns the ids of the requests for approval that have no response, or whose responses the model has not read."""
    settled = _find_answers(items).keys() | find_run_ids(items)
    requests = {item.id for item in items if isinstance(item, InputApprovalRequest)}
    return frozenset(requests - settled) | frozenset(find_newest_answers(items))


def find_approval_id(item: AnyInput) -> str | None:
    """Returns the id of the approval request that an item is, answers or has run; None for another item."""
    if isinstance(item, InputApprovalRequest):
        return item.id
    return item.approval_request_id if isinstance(item, InputApprovalResponse | InputMcpCall) else None


def shown_call(item: HostedCall | InputApprovalRequest) -> InputFunctionCall:
    """Returns a call as the model reads it, without its output."""
    namespace = None
    match item:
        case InputMcpCall() | InputApprovalRequest():
            namespace, name, arguments = item.server_label, item.name, item.arguments
        case InputWebSearchCall():
            name, fields = _describe_action(item.action or InputSearchAction())
            arguments = _write_json(fields)
        case InputCodeCall():
            name, arguments = "code_interpreter", _write_json({"code": item.code or ""})
        case InputFileSearchCall():
            name, arguments = "file_search", _write_json({"query": "; ".join(item.queries)})
    return InputFunctionCall(call_id=_call_id(item), namespace=namespace, name=name, arguments=arguments)


def shown_output(item: HostedCall) -> InputFunctionOutput:
    """Returns the output of a call as the model reads it. A call without an outcome was interrupted."""
    match item:
        case InputMcpCall():
            text = _write_mcp_output(item)
            if text == item.output:
                return InputFunctionOutput(call_id=_call_id(item), output=split_output(text))
        case InputWebSearchCall():
            sources = item.action.sources if item.action else None
            text = _write_outcome(_write_sources(sources or ()), item.status, LOST_OUTPUT)
        case InputCodeCall():
            logs = "\n".join(map(_write_code_output, item.outputs or ()))
            text = _write_outcome(logs, item.status, LOST_OUTPUT if item.outputs is None else "")
        case InputFileSearchCall():
            results = "\n\n".join(map(_write_result, item.results or ()))
            text = _write_outcome(results, item.status, LOST_OUTPUT if item.results is None else EMPTY_OUTPUT)
    return InputFunctionOutput(call_id=_call_id(item), output=text)


def write_failure(error: str | dict[str, Any]) -> str:
    """Returns what the model reads of a call that has failed with this error."""
    text = error if isinstance(error, str) else _describe_error(error)
    return FAILURE_PREFIX + text if text else FAILED_OUTPUT


class _HostedItems:
    """Converts the items of one conversation."""

    def __init__(self, items: Sequence[AnyInput]) -> None:
        self._items = items
        self._answers, self._run_ids = _find_answers(items), find_run_ids(items)
        self._approved = find_approved_calls(items)
        self._open_calls: set[str] = set()  # calls of the client's tools, whose outputs come next
        self._held_outputs: list[AnyInput] = []
        self._found = {
            item.call_id: item for item in items if isinstance(item, InputToolSearchOutput) and is_server_search(item)
        }

    def convert_items(self) -> Iterator[AnyInput]:
        """Yields the items that the model reads.

        The model calls tools of the client and of the server at once. Outputs are in the order of the calls, because
        many templates show no ids: those of the client's calls come first if their calls do.
        """
        for index, item in enumerate(self._items):
            if isinstance(item, InputHostedItem):
                yield from self._convert_hosted(item, index)
                continue
            if isinstance(item, InputToolSearchCall) and is_server_search(item):
                yield from self._show_search(item)
                continue
            if is_server_search(item):
                continue  # shown with its call
            if isinstance(item, InputCall):
                self._open_calls.add(item.call_id)
            elif isinstance(item, InputOutput):
                self._open_calls.discard(item.call_id)
                yield item
                if not self._open_calls:
                    yield from self._release_outputs()
                continue
            else:
                yield from self._release_outputs()
            yield item
        yield from self._release_outputs()

    def _release_outputs(self) -> Iterator[AnyInput]:
        yield from self._held_outputs
        self._held_outputs.clear()
        self._open_calls.clear()

    def _convert_hosted(self, item: InputHostedItem, index: int) -> Iterator[AnyInput]:
        if isinstance(item, HostedCall):
            item = item if _call_id(item) else structs.replace(item, id=f"hosted_{index}")
            yield from self._show(shown_call(item), shown_output(item))
        elif isinstance(item, InputApprovalRequest) and item.id not in self._run_ids and item.id not in self._approved:
            output = InputFunctionOutput(call_id=item.id, output=_write_refusal(self._answers.get(item.id)))
            yield from self._show(shown_call(item), output)

    def _show_search(self, call: InputToolSearchCall) -> Iterator[AnyInput]:
        """Yields a search of the server and what it has found: nothing, if its output is lost."""
        nothing = InputToolSearchOutput(call_id=call.call_id, tools=(), execution="server")
        yield from self._show(call, self._found.get(call.call_id, nothing))

    def _show(self, call: AnyInput, output: AnyInput) -> Iterator[AnyInput]:
        yield call
        if self._open_calls:
            self._held_outputs.append(output)
        else:
            yield output


def _is_newest(item: AnyInput) -> bool:
    """Tells whether an item may follow the last one of the model. Clients resend lists of tools anywhere."""
    return is_from_client(item) or isinstance(item, InputMcpList)


def _find_answers(items: Sequence[AnyInput]) -> dict[str, InputApprovalResponse]:
    """Returns the response to each request, by the request's id. The first one counts."""
    responses = [item for item in items if isinstance(item, InputApprovalResponse)]
    return {item.approval_request_id: item for item in reversed(responses)}


def _call_id(item: HostedCall | InputApprovalRequest) -> str:
    approval_id = item.approval_request_id if isinstance(item, InputMcpCall) else None
    return approval_id or item.id or ""


def _write_json(fields: dict[str, str]) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _describe_action(action: InputSearchAction) -> tuple[str, dict[str, str]]:
    """Returns the name and the arguments of a call that does this."""
    if action.type in ("open_page", "find_in_page"):
        pattern = {"pattern": action.pattern or ""} if action.type == "find_in_page" else {}
        return action.type, {"url": action.url or "", **pattern}
    return "web_search", {"query": action.query or "; ".join(action.queries or ())}


def _write_refusal(answer: InputApprovalResponse | None) -> str:
    if answer is not None and answer.approve:
        return NOT_RUN_OUTPUT
    reason = f" Reason: {answer.reason}" if answer is not None and answer.reason else ""
    return NOT_APPROVED_OUTPUT + reason


def _write_mcp_output(item: InputMcpCall) -> str:
    if item.status == "incomplete":
        return INTERRUPTED_OUTPUT
    if item.output or not item.error:
        missing = FAILED_OUTPUT if item.status == "failed" else INTERRUPTED_OUTPUT
        return missing if item.output is None else item.output
    return write_failure(item.error)


def _describe_error(error: dict[str, Any]) -> str:
    """Returns what an error tells: the text of the tool's result, or the message of its server with a code."""
    content, message, code = error.get("content"), error.get("message"), error.get("code")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(_describe_part, content))
    text = message if isinstance(message, str) else ""
    return f"{text} (code {code})".strip() if isinstance(code, int | str) else text


def _describe_part(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else "[image]" if part.get("type") == "image" else "[content]"


def _write_outcome(results: str, status: str | None, missing: str) -> str:
    """Returns the results, with a note if the call did not complete; `missing` if there are none and it did."""
    note = FAILED_OUTPUT if status == "failed" else INTERRUPTED_OUTPUT if status in _UNFINISHED else ""
    return "\n".join(filter(None, (results, note))) or missing


def _write_sources(sources: Sequence[dict[str, Any]]) -> str:
    fields = ([source.get(key) for key in ("title", "url")] for source in sources)
    lines = (": ".join(value for value in values if value and isinstance(value, str)) for values in fields)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def _write_code_output(output: InputCodeOutput) -> str:
    return "[image]" if output.logs is None else output.logs


def _write_result(result: InputFileResult) -> str:
    score = "" if result.score is None else f" (score {result.score:.2f})"
    return f"{result.filename or result.file_id or 'file'}{score}\n{result.text or ''}"
