"""The files of deploy/monitoring: well-formed, true to what is exported, and each alert tested.

What is exported is what docs/observability.md documents: tests/e2e/test_observability.py compares
the two.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documented_metrics import PAGE, series_names

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.rules.yml"
RECORDING = MONITORING / "recording.rules.yml"
PROMETHEUS_RULE = ROOT / "deploy/k8s/components/servicemonitor/prometheusrule.yaml"
DASHBOARD = MONITORING / "grafana" / "quire.json"
RULE_TESTS = sorted(Path(__file__).parent.glob("*.test.yml"))
# What Prometheus makes itself.
BUILT_IN = {"up", "ALERTS"}
NAME = re.compile(r"\b(?:\w+:)?(?:quire|process)_\w+(?::\w+)?|\bup\b|\bALERTS\b")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)"
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def groups_of(path: Path) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text())["groups"]
    return groups


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in groups_of(path) for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [
        panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"
    ]


def dashboard_expressions() -> list[str]:
    """Every query, with what Grafana puts in place of variables."""
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [re.sub(r"\$(model|cell)\b", ".*", query) for query in queries]


def names_in(expression: str) -> set[str]:
    """The series that an expression reads."""
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    return set(NAME.findall(without_strings))


@needs_promtool
def test_the_files_are_what_prometheus_takes() -> None:
    for arguments in (
        ("check", "config", MONITORING / "prometheus.yml"),
        ("check", "rules", RECORDING, ALERTS),
    ):
        checked = promtool(*arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.name)
def test_rules_behave_as_their_tests_expect(path: Path) -> None:
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize(
    "replacement",
    [
        pytest.param("vector(0) > 1", id="never"),
        pytest.param("vector(1)", id="always", marks=pytest.mark.deep),
    ],
)
def test_each_alert_that_fires_never_or_always_fails_a_test(
    replacement: str, tmp_path: Path
) -> None:
    shutil.copytree(MONITORING, tmp_path / "deploy" / "monitoring")
    directory = tmp_path / "tests" / "monitoring"
    directory.mkdir(parents=True)
    document = yaml.safe_load(ALERTS.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = replacement
            # Only the expression is to decide.
            rule.pop("for", None)
    (tmp_path / "deploy" / "monitoring" / ALERTS.name).write_text(yaml.safe_dump(document))
    copy = shutil.copy(Path(__file__).parent / "alerts.test.yml", directory)

    tested = promtool("test", "rules", copy)

    assert tested.returncode != 0
    failed = set(re.findall(r"alertname: (\w+)", tested.stdout + tested.stderr))
    assert failed == {rule["alert"] for rule in rules(ALERTS)}


def test_every_recording_rule_is_used() -> None:
    everything = dashboard_expressions() + [rule["expr"] for rule in rules(ALERTS)]
    used = set().union(*map(names_in, everything))
    for rule in rules(RECORDING):
        assert rule["record"] in used, f"{rule['record']} is not used"


@pytest.mark.parametrize("path", [RECORDING, ALERTS, DASHBOARD], ids=lambda path: path.name)
def test_only_series_that_exist_are_asked_for(path: Path) -> None:
    recorded = {rule["record"] for rule in rules(RECORDING)}
    known = series_names() | recorded | BUILT_IN
    if path == DASHBOARD:
        expressions = dashboard_expressions()
    else:
        expressions = [rule["expr"] for rule in rules(path)]
    for expression in expressions:
        names = names_in(expression)
        assert names, f"{expression} reads nothing"
        assert names <= known, f"{names - known} in {expression}"


def test_kubernetes_gets_the_same_rules() -> None:
    copy = yaml.safe_load(PROMETHEUS_RULE.read_text())
    groups = [group for path in (RECORDING, ALERTS) for group in groups_of(path)]
    assert copy["spec"]["groups"] == groups


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    headings = set(re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE))
    alerts = rules(ALERTS)
    assert {rule["alert"] for rule in alerts} == {name for name in headings if "Quire" in name}
    for rule in alerts:
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/observability.md#{name.lower()}"


@needs_promtool
def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    queries = {
        "groups": [
            {
                "name": "dashboard",
                "rules": [
                    {"record": f"query:{index}", "expr": query}
                    for index, query in enumerate(dashboard_expressions())
                ],
            }
        ]
    }
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump(queries))
    checked = promtool("check", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboards_panels_are_whole_and_do_not_overlap() -> None:
    document = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
    variables = {each["name"] for each in document["templating"]["list"]}
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            assert target["datasource"]["uid"] == "${datasource}"
