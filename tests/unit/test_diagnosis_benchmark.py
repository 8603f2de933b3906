"""The diagnosis benchmark runs its cases and scores them; how many are found is not tested."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis import KINDS
from benchmarks.diagnosis.__main__ import chosen, main
from benchmarks.diagnosis.cases import Case, all_cases
from benchmarks.diagnosis.cost import ratios, rule_time
from benchmarks.diagnosis.runner import Found, Result, run_all
from benchmarks.diagnosis.score import alarms, is_right_place, markdown, rank_of_right


def found(kind: str, path: str = "", severity: str = "error") -> Found:
    return Found(severity=severity, kind=kind, path=path, series="", step=1, message="")


def case(*kinds: str, at: tuple[str, ...] = ("",)) -> Case:
    return Case(
        name="a case",
        group="planted",
        family="numbers",
        architecture="MLP",
        train=lambda watch: None,
        kinds=kinds,
        at=at,
    )


def test_every_kind_has_a_planted_case_and_every_case_an_expected_result() -> None:
    cases = all_cases().values()
    assert {kind for one in cases for kind in one.kinds} == set(KINDS)
    assert all(one.reason for one in cases)
    assert all(bool(one.kinds) == (one.group != "healthy") for one in cases)


def test_there_are_enough_cases_on_enough_architectures() -> None:
    groups = {
        group: [one for one in all_cases().values() if one.group == group]
        for group in ("planted", "healthy", "traincheck")
    }
    assert len(groups["planted"]) >= 70
    assert len(groups["healthy"]) >= 70
    assert len(groups["traincheck"]) >= 14
    assert len({one.architecture for one in groups["planted"]}) >= 8


def test_holdout_cases_run_only_if_named() -> None:
    cases = all_cases().values()
    first = [one for one in cases if one.sample == "holdout-1"]
    assert sum(one.group == "planted" for one in first) >= 70
    assert sum(one.group == "healthy" for one in first) >= 60
    second = [one for one in cases if one.sample == "holdout-2"]
    assert sum(one.group == "planted" for one in second) >= 25
    assert sum(one.group == "healthy" for one in second) >= 25
    assert all(one.name.startswith("holdout-1/") for one in first)
    assert {one.sample for one in chosen(None)} == {"in-sample"}
    assert {one.sample for one in chosen(["planted"])} == {"in-sample"}
    assert chosen(["holdout-1"]) == first
    assert chosen(["holdout-2"]) == second
    third = chosen(["holdout-3"])
    assert sum(one.group == "planted" for one in third) >= 50
    assert sum(one.group == "healthy" for one in third) >= 30


@pytest.mark.parametrize(
    ("at", "path", "right"),
    [
        (("net.1",), "net.1", True),
        (("net.1",), "net.1.weight", True),
        (("net.1",), "net.10", False),
        (("net.1",), "", False),
        (("",), "", True),
        (("",), "weight", True),
        (("blocks.*",), "blocks.3.attention.query", True),
        (("blocks.*",), "head", False),
        (("temperature",), "temperature", True),
    ],
)
def test_a_location_is_a_module_a_parameter_or_a_pattern(
    at: tuple[str, ...], path: str, right: bool
) -> None:
    assert is_right_place(case("nan", at=at), path) is right


def test_the_rank_starts_at_zero_and_needs_kind_and_location() -> None:
    one = case("nan", at=("net",))
    assert rank_of_right(one, [found("inf", "net"), found("nan"), found("nan", "net")]) == 2
    assert rank_of_right(one, [found("nan", "head")]) is None


def test_notes_are_not_alarms() -> None:
    result = Result(case="x", log_freq=1, found=(found("nan", severity="note"), found("inf")))
    assert [one.kind for one in alarms(result)] == ["inf"]


def test_a_case_runs_is_scored_and_reports_its_losses() -> None:
    cases = [all_cases()["nan-in-a-batch"], all_cases()["tiny-dataset"]]
    nan, tiny = run_all(cases, [1], workers=1)
    assert not nan.error
    assert rank_of_right(cases[0], nan.found) == 0
    assert not alarms(tiny)
    assert tiny.last_loss < tiny.first_loss
    assert "1 (100%)" in markdown([nan, tiny])


def test_an_unknown_case_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no-such-case"])
    assert "no case is called no-such-case" in capsys.readouterr().err


def test_the_cost_of_the_rules_is_measured() -> None:
    own = rule_time(layers=2, steps=5)
    found = ratios(("mlp", {"layers": 2, "width": 4}), batch=4, turns=1)

    assert own.series > 20
    assert own.milliseconds > 0
    assert min(found) > 0
