"""Stop strings of text completions in every chunking."""

import json

import pytest

from antiphon.app.errors import ApiError
from tests.snapshots.cases import CASES, Case
from tests.snapshots.chunkings import list_chunkings, output_tokens
from tests.snapshots.completion_checks import ALL_DETAILS, ECHO, detokenize
from tests.snapshots.run_case import make_single_case_registry, read_completion
from tests.snapshots.stream_sums import sum_completion_chunks

STOP_CASES = [case for case in CASES if case.name in ("stop_string", "half_a_stop_string", "text", "blanks_only")]


@pytest.mark.parametrize("stop", ["\n", "e", "\n\n", "lo t"])
@pytest.mark.parametrize("case", STOP_CASES, ids=lambda case: case.name)
async def test_stop_string_cuts_the_text_at_its_first_match(case: Case, stop: str) -> None:
    """Blanks are text, so a stop string in leading blanks counts; what is returned does not depend on the chunks."""
    [model] = make_single_case_registry(case).served
    text = detokenize(output_tokens(case, model.format), model.format)
    for chunked in list_chunkings(case).values():
        result = await read_completion(chunked, stop=[stop], **ALL_DETAILS)
        assert not isinstance(result.reply, ApiError)
        [choice] = json.loads(result.reply)["choices"]
        assert choice["text"].removeprefix(ECHO) == text.partition(stop)[0]
        assert choice["stop_reason"] == (stop if stop in text else None)
        assert choice == next(iter(sum_completion_chunks(result.data).values()))
        with_stop = await read_completion(chunked, stop=[stop], include_stop_str_in_output=True)
        assert not isinstance(with_stop.reply, ApiError)
        [choice] = json.loads(with_stop.reply)["choices"]
        assert choice["text"] == text.partition(stop)[0] + (stop if stop in text else "")
