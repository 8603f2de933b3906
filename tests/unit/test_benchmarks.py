"""The benchmarks run and say what they found; how fast anything is, is not tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import imports, report, structure, summary, tracing
from benchmarks.__main__ import TOPICS, main
from benchmarks.cases import alone
from benchmarks.measure import in_turns, peak_bytes, storage_bytes
from benchmarks.models import (
    DEEP,
    GPT_2,
    LSTM,
    MANY,
    MLP,
    RESNET18,
    VERY_MANY,
    Scale,
    Spec,
    build,
)
from benchmarks.rows import OURS, TORCHINFO, TORCHLENS, Case, Effort, Reading, Row, Table, Topic
from benchmarks.tracers import necessary_bytes, tracer

QUICK = Effort(rounds=1, quick=True)
ROWS: Spec = ("rows", {"count": 3})

needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak of a process is read from /proc"
)


def row(ours: float, goal: float | None = None, **peers: Reading) -> Row:
    readings = {OURS: Reading(unit="ms", samples=(ours,)), **peers}
    return Row(name="a row", readings=readings, goal=goal)


def text_of(*rows: Row) -> str:
    topic = Topic(name="topic", title="Topic", about="About it.", cases=[])
    facts = report.gather_facts(QUICK, load_before=0.5, seconds=60)
    return report.markdown([Table(topic=topic, rows=rows)], facts)


@pytest.mark.parametrize("scale", [RESNET18, GPT_2, LSTM, MLP, MANY, VERY_MANY, DEEP])
def test_every_subject_runs(scale: Scale) -> None:
    subject = build(scale.small)

    with torch.no_grad():
        output = subject.forward()

    assert torch.isfinite(output).all()


def test_a_benchmark_tree_has_the_stated_number_of_modules() -> None:
    model = build(("tree", {"modules": 437})).model

    assert sum(1 for _ in model.modules()) == 437


@pytest.mark.slow
def test_contenders_alternate_after_a_warmup_round() -> None:
    order: list[str] = []
    runs = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}

    times = in_turns(runs, rounds=2)

    assert order == ["a", "b", "a", "b", "b", "a"]
    assert [len(of_one) for of_one in times.values()] == [2, 2]


@needs_linux
def test_the_peak_of_a_benchmark_run_is_its_maximum_memory() -> None:
    def run() -> str:
        torch.ones(25_000_000)
        return "done"

    result, peak = peak_bytes(run)

    assert result == "done"
    assert 90e6 < peak < 110e6


def test_views_of_one_storage_are_counted_once() -> None:
    whole, other = torch.zeros(10), torch.zeros(3)

    assert storage_bytes([whole, whole[2:], other], besides=[other]) == 40


def test_overwritten_results_count_toward_the_necessary_bytes() -> None:
    subject = build(("mlp", {"layers": 1, "width": 4}))
    one_result = 8 * 4 * 4
    separate = necessary_bytes(subject)

    subject.model[1].inplace = True  # type: ignore[index]
    in_place = necessary_bytes(subject)

    assert separate == in_place == 2 * one_result


@pytest.mark.slow
def test_our_trace_is_timed_with_and_without_analysis() -> None:
    found = tracing.time_ours(LSTM.small, rounds=2)

    floor = ["results kept", "… with copies"]
    assert list(found) == ["forward alone", *floor, OURS, "… and all worked out"]
    assert all(len(samples) == 2 for samples in found.values())


def test_our_trace_has_all_ops_and_saves_only_necessary_bytes() -> None:
    ops = tracer(OURS).work_out(tracer(OURS).trace(build(MLP.small)))

    assert ops == 8
    assert tracing.times_necessary_bytes(MLP.small, OURS, rounds=1) == [1]


@pytest.mark.slow
def test_our_trace_is_measured_in_detail() -> None:
    assert len(tracing.microseconds_to_work_out(ROWS, OURS, rounds=2)) == 2
    assert len(tracing.first_trace_milliseconds(OURS)) == 1


@pytest.mark.slow
@needs_linux
def test_memory_is_measured() -> None:
    assert len(tracing.kilobytes_recorded(MLP.small, OURS, rounds=1)) == 1
    assert len(tracing.kilobytes_worked_out(MLP.small, OURS, rounds=1)) == 1
    assert len(structure.peak_megabytes(DEEP.small, OURS, rounds=1)) == 1


@pytest.mark.slow
def test_structure_and_imports_are_measured() -> None:
    assert len(structure.time_reading(DEEP.small, OURS, rounds=2)) == 2
    assert len(imports.import_cost(OURS)) == 1
    assert len(imports.first_summary_cost(OURS)) == 1
    assert imports.help_cost() > 0


@pytest.mark.parametrize("with_input", [False, True])
def test_summaries_are_measured(*, with_input: bool) -> None:
    found = summary.time_summaries(GPT_2.small, [OURS], rounds=1, with_input=with_input)

    assert list(found) == [OURS]


def test_a_peer_that_is_not_installed_is_reported_and_skipped() -> None:
    reading = alone("nobody_has_this", "ms", structure.time_reading)

    assert reading == Reading(unit="ms", why_not="not installed")


@pytest.mark.slow
def test_a_contender_that_raises_is_a_row_with_the_error() -> None:
    reading = alone(OURS, "ms", structure.time_reading, spec=["no such model", {}], rounds=1)

    assert reading == Reading(unit="ms", why_not="failed: KeyError")


def test_quick_runs_do_not_check_goals() -> None:
    case = Case("a case", lambda _: {OURS: Reading(unit="s", samples=(1,))}, goal=2)

    assert case.row(QUICK).is_met is None
    assert case.row(Effort()).is_met is True


def test_a_missed_goal_is_shown() -> None:
    text = text_of(row(0.5, goal=1), row(1.5, goal=1))

    assert "| a row | 0.50 ms    | ≤ 1 ms | yes    |" in text
    assert "| a row | 1.50 ms    | ≤ 1 ms | **no** |" in text


def test_a_peer_is_compared_if_both_were_measured() -> None:
    slower = Reading(unit="ms", samples=(9, 10, 11))
    text = text_of(row(4, torchinfo=slower, TorchLens=Reading(unit="ms", why_not="not installed")))

    assert "10.0 ms (9.50–10.5) = 2.50 × ours | not installed |" in text


def test_the_measured_section_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n", encoding="utf-8")

    report.write_between_marks(page, "new\n")

    expected = f"Before.\n\n{report.BEGIN}\n\nnew\n\n{report.END}\n\nAfter.\n"
    assert page.read_text(encoding="utf-8") == expected


@pytest.mark.slow
def test_the_benchmark_command_prints_a_table_and_saves_all_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "numbers.json"

    code = main(["--quick", "--only", "GPT-2-small-like, seq 128, no", "--json", str(file)])

    printed = capsys.readouterr()
    numbers = json.loads(file.read_text(encoding="utf-8"))
    (found,) = numbers["topics"]["summary"]
    assert code == 0
    assert "### Summary" in printed.out
    assert "1/1 summary: GPT-2-small-like, seq 128, no input …" in printed.err
    assert list(found["readings"]) == [OURS, TORCHINFO]
    assert len(found["readings"][OURS]["samples"]) == 1
    assert TORCHLENS in numbers["facts"]["versions"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "nothing of ours"], "nothing is called"),
        (["--rounds", "0"], "at least one round"),
        (["--write", "nowhere.md"], "has no part between"),
        (["--write", "nowhere.md", "--only", "tracing"], "from a whole run"),
    ],
)
def test_an_invalid_benchmark_option_is_refused_before_anything_runs(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_every_topic_has_a_unique_name_and_rows() -> None:
    names = [topic.name for topic in TOPICS]

    assert len(set(names)) == len(names)
    assert all(topic.cases for topic in TOPICS)
