"""Finds items that a client sends twice, and items of hosted tools that the conversation has already."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from antiphon.app.errors import ApiError, clip_text
from antiphon.events.hosted_inputs import InputApprovalResponse, InputHostedItem
from antiphon.events.inputs import AnyInput

_ItemKey = tuple[str, str]
"""The kind and the id of an item. Some clients give a call and its output one id, so the kind counts."""


def check_duplicates(items: Sequence[AnyInput], param: str = "input") -> None:
    """Checks that each item of the input is there once, and each approval request is answered once.

    Raises `ApiError` 400.
    """
    _check_unique(items, items, param)


def check_resent(sent: Sequence[AnyInput], conversation: Sequence[AnyInput], param: str = "input") -> None:
    """Checks that the items of hosted tools in the input are once in the whole conversation. Raises `ApiError` 400.

    The server acts on these items, so a second one would run a tool again. Items that are twice in earlier turns were
    accepted then.
    """
    _check_unique(_filter_hosted(sent), _filter_hosted(conversation), param)


def _filter_hosted(items: Iterable[AnyInput]) -> list[AnyInput]:
    return [item for item in items if isinstance(item, InputHostedItem)]


def _check_unique(checked: Iterable[AnyInput], items: Iterable[AnyInput], param: str) -> None:
    counts = Counter(key for item in items for key in _list_keys(item))
    for item in checked:
        for kind, item_id in _list_keys(item):
            if counts[kind, item_id] > 1:
                name = "approval response found for request" if kind == _ANSWER else "item found with id"
                message = f"Duplicate {name} {clip_text(item_id)}. Remove duplicate items from your input and "
                raise ApiError(400, None, f"{message}try again.", param)


_ANSWER = "answer of an approval request"


def _list_keys(item: AnyInput) -> Iterator[_ItemKey]:
    if item.id:
        yield type(item).__name__, item.id
    if isinstance(item, InputApprovalResponse):
        yield _ANSWER, item.approval_request_id
