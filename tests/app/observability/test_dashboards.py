"""The dashboard and the alerts in `deploy/` name what servers expose, and every family is on the dashboard."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
import yaml

from antiphon.app.turn_types.endings import CAUSES
from antiphon.app.turn_types.turn_stats import Api
from tests.app.observability.every_kind import find_family, read_exposed
from tests.syntax import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/antiphon.json").read_text(encoding="utf-8"))
ALERTS_FILE = ROOT / "deploy/prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS_FILE.read_text(encoding="utf-8"))["groups"][0]["rules"]
PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus itself adds."""
WITHOUT_PANEL = {"process_virtual_memory_bytes": "address space, which torch reserves in terabytes: no use of memory"}
"""Families that are on no dashboard, and why."""
VARIABLES = {"$__rate_interval": "5m", "$model": ".*", "$job": ".*"}


def list_queries() -> list[tuple[str, str]]:
    """Returns each expression with the panel or alert that it belongs to."""
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*panels, *((rule["alert"], rule["expr"]) for rule in RULES)]


def parse(text: str) -> Any:
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$" not in text
    return promql_parser.parse(text)


def walk(node: Any) -> Iterator[Any]:
    """Yields all nodes of an expression."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (child := getattr(node, name, None)) is not None:
            yield from walk(child)
    for child in getattr(node, "args", None) or ():
        yield from walk(child)


def list_selectors(expression: Any) -> list[tuple[str, dict[str, str]]]:
    """Returns the names of samples with the labels that are compared, and their values."""
    return [
        (node.name, {matcher.name: matcher.value for matcher in node.matchers.matchers})
        for node in walk(expression)
        if isinstance(node, promql_parser.VectorSelector)
    ]


@pytest.mark.parametrize(("title", "text"), list_queries())
def test_expression_names_what_is_exposed(title: str, text: str) -> None:
    exposed, expression = read_exposed(), parse(text)
    selectors = list_selectors(expression)
    assert selectors, title
    known = set(TARGET_LABELS)
    for name, matchers in selectors:
        assert name in exposed, f"{title}: no server exposes {name}"
        assert set(matchers) <= exposed[name] | TARGET_LABELS, f"{title}: {name} has no such label"
        known |= exposed[name]
    for node in walk(expression):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= known, f"{title}: {text}"


def test_values_of_labels_exist() -> None:
    """A cause or a code that was renamed would silence an alert."""
    values = {"cause": set(CAUSES), "api": {*get_args(Api), "websocket"}}
    for title, text in list_queries():
        for _, matchers in list_selectors(parse(text)):
            for label, value in matchers.items():
                if label in values and value != ".*":
                    assert set(value.split("|")) <= values[label], title
    codes = {code for _, text in list_queries() for code in re.findall(r'reason=~"([^"]+)"', text)}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py"))
    assert all(f'"{code}"' in sources for each in codes for code in each.split("|"))


def test_every_family_is_on_the_dashboard() -> None:
    shown = {
        find_family(name)
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
        for name, _ in list_selectors(parse(target["expr"]))
    }
    families = {find_family(name) for name in read_exposed()}
    assert families - shown == set(WITHOUT_PANEL)


def test_legends_name_labels() -> None:
    exposed = read_exposed()
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            labels = TARGET_LABELS.union(*(exposed[name] for name, _ in list_selectors(parse(target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]


def test_dashboard_belongs_to_no_installation() -> None:
    """Another's data source would not resolve, and panels with one id hide each other."""
    assert "id" not in DASHBOARD and "__inputs" not in DASHBOARD
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(variable["current"] == {} and variable["options"] == [] for variable in variables.values())
    sources = [panel["datasource"] for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for variable in variables.values():
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label in read_exposed()[name] | TARGET_LABELS


def test_every_alert_says_what_to_do() -> None:
    listed = re.findall(r"^\| `(Antiphon\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in listed] == [rule["alert"] for rule in RULES]
    assert all(len(action) > 40 for _, action in listed)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info") and rule["annotations"]["summary"]
        found = {name for name, _ in list_selectors(parse(rule["expr"]))}
        labels = TARGET_LABELS.union(*(read_exposed()[name] for name in found))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


def find_promtool() -> str | None:
    return os.environ.get("PROMTOOL") or shutil.which("promtool")


@pytest.mark.skipif(find_promtool() is None, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    *verb, name = arguments
    command = [str(find_promtool()), *verb, str(Path("deploy/prometheus", name))]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_has_a_case_for_promtool() -> None:
    cases = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    firing = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert firing == {rule["alert"] for rule in RULES}
