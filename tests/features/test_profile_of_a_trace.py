"""Someone looks at a trace on a laptop that a job on a cluster wrote with torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

import torchglass as tg
from tests.command_line import main
from torchglass import errors


def event(category: str, name: str, start: float, took: float, **more: Any) -> dict[str, Any]:
    """An event as torch.profiler writes it, on the main thread."""
    place = {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": took, **place, **more}


def launch(number: int, start: float) -> dict[str, Any]:
    """The call that launches a kernel."""
    return event("cuda_runtime", "cudaLaunchKernel", start, 2, args={"correlation": number})


def kernel(
    name: str, start: float, took: float, category: str = "kernel", device: int = 0, **ids: int
) -> dict[str, Any]:
    """Work on a device."""
    place = {"pid": device, "tid": 7, "args": {"device": device, "stream": 7, **ids}}
    return {**event(category, name, start, took), **place}


def op(
    name: str, start: float, took: float, number: int, thread: int = 1, **args: int
) -> dict[str, Any]:
    """An op on the CPU."""
    return {**event("cpu_op", name, start, took), "tid": thread} | {
        "args": {"External id": number, **{key.replace("_", " "): args[key] for key in args}}
    }


FORWARD = {"Sequence_number": 5, "Fwd_thread_id": 0}
BACKWARD = {"Sequence_number": 5, "Fwd_thread_id": 1}
GPU_JOB = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    event("user_annotation", "ProfilerStep#3", 0, 1000),
    event("python_function", "train.py(7): step", 0, 1000),
    event("python_function", "nn.Module: Net_0", 100, 200),
    event("python_function", "nn.Module: Linear_0", 110, 90),
    op("aten::addmm", 120, 50, 11, **FORWARD),
    launch(1, 130),
    kernel("gemm", 200, 100, correlation=1),
    event("python_function", "nn.Module: ReLU_0", 210, 50),
    launch(2, 220),
    kernel("relu", 310, 40, correlation=2),
    op("autograd::engine::evaluate_function: AddmmBackward0", 400, 90, 12, 2, **BACKWARD),
    {**launch(3, 420), "tid": 2},
    kernel("gemm", 450, 150, correlation=3),
    event("user_annotation", "Optimizer.step#SGD.step", 620, 100),
    op("aten::add_", 630, 40, 13),
    {**kernel("add", 640, 10), "args": {"device": 0, "External id": 13}},
    event("cuda_runtime", "cudaDeviceSynchronize", 700, 15, args={"correlation": 9}),
    kernel("Memcpy HtoD", 150, 80, "gpu_memcpy", correlation=8),
    kernel("Memset", 660, 5, "gpu_memset", correlation=7),
    kernel("other", 900, 20, correlation=77, device=1),
]


def written(events: list[dict[str, Any]], file: Path) -> Path:
    """A trace file."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, indent=2)
    compressed = file.suffix == ".gz"
    file.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    return file


@pytest.fixture(params=["job.json", "job.json.gz"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(GPU_JOB, tmp_path / request.param)


def test_busy_idle_and_copy_time_of_each_device_are_exact(job: Path) -> None:
    taken = tg.profile(str(job))
    first, second = taken.times.devices

    assert taken.times.span_ns == 1_000_000
    # 150–300 (the copy overlaps the kernel), 310–350, 450–600, 640–650 and 660–665.
    assert (first.busy_ns, first.idle_ns) == (355_000, 645_000)
    assert (first.between_ns, first.longest_gap_ns) == (160_000, 100_000)
    assert (first.kernels, first.kernel_ns) == (4, 300_000)
    assert (first.copy_ns, first.memset_ns) == (80_000, 5_000)
    assert (second.device, second.busy_ns, second.between_ns) == (1, 20_000, 0)


def test_forward_and_backward_kernels_belong_to_their_modules(job: Path) -> None:
    taken = tg.profile(job)
    rows = {one.name: (one.total_ns, one.self_ns, one.count) for one in taken.entries}

    assert rows == {
        "Net_0": (290_000, 0, 0),
        "Net_0 > Linear_0": (250_000, 250_000, 2),
        "Net_0 > ReLU_0": (40_000, 40_000, 1),
        "Optimizer.step#SGD.step": (10_000, 10_000, 1),
        "(no module)": (20_000, 20_000, 1),
    }
    assert next(one for one in taken.entries if "Linear" in one.name).backward_ns == 150_000
    assert (taken.kernels[0].name, taken.kernels[0].self_ns) == ("gemm", 250_000)
    assert taken.times.unlinked == 1


def test_launching_threads_are_listed_with_their_wait_times(job: Path) -> None:
    main_thread, autograd = tg.profile(job).times.threads

    assert (main_thread.launches, main_thread.call_ns, main_thread.wait_ns) == (3, 19_000, 15_000)
    assert (main_thread.op_ns, autograd.op_ns, autograd.launches) == (90_000, 90_000, 1)


def test_the_report_starts_with_the_answer(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(job), "--ops"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == (
        "The trace covers 1.00ms: device 0 was busy 36% and idle 64% of it, with 80.00μs of "
        "copies; device 1 was busy 2% and idle 98% of it, with 0 of copies; the slowest module or "
        "range is Net_0 > Linear_0 with 78% of the kernel time."
    )
    assert any(line.startswith("gemm ") for line in lines)


def test_all_formats_have_the_times(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tg.profile(job)
    assert main(["profile", str(job), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(taken.schema()).validate(document)
    assert main(["profile", str(job), "--brief"]) == 0
    brief = capsys.readouterr().out
    assert main(["profile", str(job), "--csv", "-"]) == 0
    table = capsys.readouterr().out

    assert document["schema"] == "torchglass/trace-profile"
    assert (document["complete"], document["steps"]) == (True, 1)
    assert document["devices"][0]["busy_ns"] == 355_000
    assert brief.startswith("The trace covers 1.00ms")
    assert "Net_0 > Linear_0,250000,250000,150000," in table
    assert "Linear_0" in taken.to_html()


def test_without_modules_the_table_lists_kernels(tmp_path: Path) -> None:
    bare = [one for one in GPU_JOB if one.get("cat") in ("kernel", "cuda_runtime")]
    taken = tg.profile(written(bare, tmp_path / "bare.json"))

    assert [one.name for one in taken.entries] == ["gemm", "relu", "other", "add"]
    assert "no modules in the trace" in str(taken)


def test_a_real_cpu_trace_gives_op_times_by_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    file = tmp_path / "cpu.json.gz"
    with torch_profile(
        activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True
    ) as profiler:
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        with record_function("my part"):
            torch.ones(3).exp()
    profiler.export_chrome_trace(str(file))
    taken = tg.profile(file)
    rows = {one.name: one for one in taken.entries}
    linear = rows["Sequential_0 > Linear_0"]

    assert not taken.times.devices
    assert "no kernels of a GPU" in taken.answer
    assert 0 < linear.backward_ns < linear.self_ns
    assert rows["my part"].count >= 2
    assert rows["Sequential_0"].total_ns == sum(
        one.self_ns for name, one in rows.items() if name.startswith("Sequential_0")
    )
    # The own times of ops add up: what is inside of another op does not count twice.
    assert sum(one.self_ns for one in taken.entries) == taken.times.work_ns <= taken.times.span_ns
    assert {"aten::addmm", "aten::exp", "AddmmBackward0"} <= {one.name for one in taken.kernels}


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
def test_a_truncated_trace_shows_its_readable_part(tmp_path: Path, name: str) -> None:
    whole = written(GPU_JOB * 200, tmp_path / name)
    cut = tmp_path / f"cut-{name}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    taken = tg.profile(cut)

    assert 0 < taken.times.events < len(GPU_JOB) * 200
    assert not taken.to_dict()["complete"]
    assert "the file ends in the middle: only what was read until there is shown" in str(taken)


def test_corruption_in_the_middle_is_reported(tmp_path: Path) -> None:
    whole = bytearray(written(GPU_JOB * 2000, tmp_path / "job.json.gz").read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 40] = b"\xff" * 40
    (tmp_path / "bad.json.gz").write_bytes(whole)

    assert "corrupt" in str(tg.profile(tmp_path / "bad.json.gz"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", 'has no list of "traceEvents"'),
        (b"hello", 'has no list of "traceEvents"'),
        (b'{"loss": [1, 2]}', 'has no list of "traceEvents"'),
        (b"\x1f\x8b\x08nonsense", "the compressed file is corrupt"),
        (b'{"traceEvents": [{"ph": "X"', "ends in the middle, before the first op or kernel"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "net", "ts": 1}]}',
            "none of its events is an op or kernel",
        ),
    ],
)
def test_a_file_that_is_not_a_profiler_trace_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)

    with pytest.raises(errors.TargetError, match=r"other\.json"):
        tg.profile(file)
    assert main(["profile", str(file)]) != 0
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_missing_files_and_model_options_are_one_line_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(tmp_path / "none.json.gz")]) != 0
    assert "No such file" in capsys.readouterr().err
    assert main(["profile", "job.json", "--input", "1x2"]) != 0
    assert "for a model, not for a trace" in capsys.readouterr().err


def test_invalid_events_are_ignored(tmp_path: Path) -> None:
    odd: list[Any] = [
        *(5, "text", None, {"ph": "X", "cat": ["cpu_op"], "ts": 1, "dur": 1}),
        event("cpu_op", "late", 1, 1e300),
        event("cpu_op", "back", 1, -5),
        {**event("cpu_op", "when", 1, 1), "ts": "noon"},
        event("cpu_op", "never", float("nan"), 1),
        {**event("kernel", "nowhere", 5, 1e300), "args": []},
        event("cpu_op", "big", 3, 1, args={"External id": 10**30, "Sequence number": None}),
    ]
    in_a_list = tmp_path / "list.json"
    in_a_list.write_text("\ufeff" + json.dumps(odd), encoding="utf-8")

    for file in (written(odd, tmp_path / "odd.json"), in_a_list):
        taken = tg.profile(file)
        assert [(one.name, one.self_ns) for one in taken.kernels] == [("big", 1_000)]
        assert not taken.problem
