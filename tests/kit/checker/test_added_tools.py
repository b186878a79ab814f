"""Tools that items of the input add are known to the checker of calls."""

from typing import Any

import pytest

from antiphon.kit.checker.policy import check_policy
from antiphon.kit.findings import FindingList

TOOL = {"type": "function", "name": "run", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run", "arguments": "{}"}


@pytest.mark.parametrize(
    ("item", "codes"),
    [
        ({"type": "additional_tools", "role": "developer", "tools": [TOOL]}, []),
        ({"type": "tool_search_output", "call_id": "call_0", "tools": [TOOL]}, []),
        ({"type": "message", "role": "user", "content": "run"}, ["tool-unknown"]),
    ],
    ids=["additional", "found", "none"],
)
def test_tools_of_items_are_known(item: dict[str, Any], codes: list[str]) -> None:
    findings = FindingList()
    check_policy({"input": [item]}, {"status": "completed", "output": [CALL]}, findings)
    assert [finding.code for finding in findings.list_findings()] == codes
