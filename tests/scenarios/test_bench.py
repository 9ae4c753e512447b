"""The benchmark at its smallest: every workload runs to its end, and has figures to tell."""

import json
from typing import Any

import pytest

from tests.programs import program
from tests.waiting import wait_until

LONG = 300.0
OURS = "rejoinder threads"
SOME = ["--only", "threads", "--streamers", f"bare redis,{OURS}"]
OTHERS = ["--against", "HEAD", "--with-env", "plain=REJOINDER_FAST=off"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Its figures, and what it printed."""
    figures = tmp_path_factory.mktemp("bench") / "figures.json"
    with program("scripts/bench.py", "--tiny", *SOME, *OTHERS, "--json", str(figures)) as bench:
        wait_until(lambda: figures.exists() or "Traceback" in bench.text, LONG, "figures")
        assert bench.end() == 0, bench.text
    return json.loads(figures.read_text()), bench.text


@pytest.mark.timeout(360)
def test_turns_and_streams_have_figures(run: tuple[dict[str, Any], str]) -> None:
    told, _ = run
    turns = told["w1"]["at once"][OURS]
    assert turns["statements/step"] > turns["commits/step"] > 1
    assert turns["CPU ms/step worker"] > 0
    streams = told["w2"]["2"][OURS]
    assert (streams["at once"], streams["words lost"]) == (2, 0)


@pytest.mark.parametrize("other", ["@HEAD", "(plain)"])
def test_another_commit_and_another_environment_run_beside_it(
    run: tuple[dict[str, Any], str], other: str
) -> None:
    told, text = run
    for title in ("alone", "at once"):
        assert told["w1"][title][f"{OURS} {other}"]["CPU ms/step worker"] > 0
    streams = told["w2"]["2"][f"{OURS} {other}"]
    assert (streams["at once"], streams["words lost"]) == (2, 0)
    pair = "(plain) / without" if other == "(plain)" else "this commit / @HEAD"
    assert text.count(pair) == 3  # turns alone, turns at once, streams


def test_latency_and_growth_have_figures(run: tuple[dict[str, Any], str]) -> None:
    told, _ = run
    latency = told["w3"]["latency"]
    for what in (f"{OURS}: interrupt -> waiting", f"{OURS}: send -> first word"):
        assert latency[what]["n"] == 2
    assert latency["SIGKILL: signal -> runs elsewhere"]["n"] >= 1
    assert told["w4"]["rows"][f"{OURS}, 20 in the prompt"]["gap p50 ms"] > 0


def test_every_workload_tells_whether_it_met_its_targets(run: tuple[dict[str, Any], str]) -> None:
    told, text = run
    assert len(told["targets"]) == 16
    assert all(each["says"] in text for each in told["targets"])
