"""Messages of an ended response: their log-probabilities and annotations, against the text and the settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonItem, as_list, as_objects, as_text

REPLACEMENT = "\ufffd"
"""Stands in a token's text for bytes that are a part of a character."""


def check_messages(
    settings: Mapping[str, Any], request: Mapping[str, Any] | None, output: Sequence[JsonItem], findings: FindingList
) -> None:
    """Checks the texts of the messages of an ended response."""
    for item in output:
        for part in as_objects(item.get("content")) if item.get("type") == "message" else []:
            if part.get("type") == "output_text":
                check_logprobs(settings, request, part, str(item.get("id")), findings)
                _check_annotations(part, str(item.get("id")), findings)


def check_logprobs(
    settings: Mapping[str, Any],
    request: Mapping[str, Any] | None,
    part: Mapping[str, Any],
    label: str,
    findings: FindingList,
) -> None:
    """Checks the log-probabilities of a text: whether they were requested, each entry, and that they spell it."""
    asked = settings.get("top_logprobs")
    count = asked if isinstance(asked, int) else 0
    included = "message.output_text.logprobs" in as_list((request or {}).get("include"))
    entries, text = as_list(part.get("logprobs")), as_text(part.get("text"))
    if request is not None and (count or included) and text and not entries:
        findings.add("logprobs-missing", "an entry for each token", "none", label)
    if request is not None and not count and not included and entries:
        findings.add("logprobs-unrequested", "no entries", f"{len(entries)}", label)
    for entry in entries:
        _check_entry(entry, count, label, findings)
    tokens = _spell(as_objects(entries))
    if tokens and not _is_spelled(text.encode(errors="replace"), tokens):
        findings.add("logprobs-text", quote(text), quote(b"".join(tokens).decode(errors="replace")), label)


def _is_spelled(text: bytes, tokens: Sequence[bytes]) -> bool:
    """Returns whether the tokens spell the text. A stop string may cut it inside the last one."""
    return b"".join(tokens).startswith(text) and len(b"".join(tokens[:-1])) < len(text)


def _spell(entries: Sequence[Mapping[str, Any]]) -> list[bytes] | None:
    """Returns the bytes of the tokens, None if they are unknown."""
    spelled = []
    for entry in entries:
        token, octets = as_text(entry.get("token")), entry.get("bytes")
        if isinstance(octets, list) and all(isinstance(each, int) and 0 <= each < 256 for each in octets):
            spelled.append(bytes(octets))
        elif REPLACEMENT in token:
            return None
        else:
            spelled.append(token.encode(errors="replace"))
    return spelled


def _check_entry(entry: Any, count: int, label: str, findings: FindingList) -> None:
    if not isinstance(entry, dict):
        findings.add("logprob-entry", "an object", quote(entry), label)
        return
    tops = as_objects(entry.get("top_logprobs"))
    for each in [entry, *tops]:
        token, logprob, spelled = each.get("token"), each.get("logprob"), each.get("bytes")
        if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, int | float):
            findings.add("logprob-entry", "a token and a number", quote(each), label)
            continue
        if logprob > 0:
            findings.add("logprob-positive", "a logarithm of at most 0", quote(logprob), label)
        if isinstance(spelled, list) and REPLACEMENT not in token and spelled != list(token.encode(errors="replace")):
            findings.add("logprob-bytes", f"the bytes of {quote(token)}", quote(spelled), label)
    values = [top["logprob"] for top in tops if isinstance(top.get("logprob"), int | float)]
    if values != sorted(values, reverse=True):
        findings.add("logprob-order", "top_logprobs from the most likely down", quote(values), label)
    if len(tops) > count:
        findings.add("logprob-count", f"at most {count} top_logprobs", str(len(tops)), label)


def _check_annotations(part: Mapping[str, Any], label: str, findings: FindingList) -> None:
    """Reports places outside the text. Places may count characters or, as in JavaScript, units of UTF-16."""
    length = len(as_text(part.get("text")).encode("utf-16-le", errors="replace")) // 2
    for annotation in as_objects(part.get("annotations")):
        start, end = annotation.get("start_index"), annotation.get("end_index")
        places = [place for place in (start, end, annotation.get("index")) if isinstance(place, int)]
        is_reversed = isinstance(start, int) and isinstance(end, int) and start > end
        if is_reversed or any(not 0 <= place <= length for place in places):
            kind = as_text(annotation.get("type"))
            findings.add(
                "annotation-place", f"a place within the {length} characters", quote(annotation), f"{label} {kind}"
            )
