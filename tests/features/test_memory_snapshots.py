"""Someone opens a memory snapshot of a GPU on a machine without one.

The files are generated in the format that torch.cuda.memory._snapshot documents.
"""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.command_line import main
from torchglass import errors, memory, watch

MB = 2**20
TORCH = "/env/lib/python3.11/site-packages/torch/nn/modules"
LINE_OF_LINEAR = nn.Linear.forward.__code__.co_firstlineno + 1


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def stack(line: int, name: str = "forward", file: str = "/job/net.py") -> list[dict[str, Any]]:
    """The innermost frame first: C++, torch, the user's line, and what called it."""
    return [
        frame("??", 0, "at::empty_cuda"),
        frame(f"{TORCH}/linear.py", LINE_OF_LINEAR, "forward"),
        frame(f"{TORCH}/module.py", 1773, "_call_impl"),
        frame(file, line, name),
        frame("/job/train.py", 9, "<module>"),
    ]


def used(size: int, frames: list[dict[str, Any]], requested: int | None = None) -> dict[str, Any]:
    asked = size if requested is None else requested
    return {
        "size": size,
        "requested_size": asked,
        "state": "active_allocated",
        "frames": frames,
    }


def free(size: int) -> dict[str, Any]:
    return {"size": size, "requested_size": 0, "state": "inactive", "frames": []}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    active = sum(one["size"] for one in blocks if one["state"].startswith("active"))
    return {
        "address": address,
        "total_size": sum(one["size"] for one in blocks),
        "allocated_size": active,
        "active_size": active,
        "device": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "blocks": list(blocks),
        **more,
    }


def action(name: str, addr: int, size: int, frames: Any = ()) -> dict[str, Any]:
    return {"action": name, "addr": addr, "size": size, "stream": 0, "frames": list(frames)}


def a_training() -> dict[str, Any]:
    """Two large segments, a small one, a private one; a history with a peak and a failure."""
    pending = {**used(1 * MB, stack(20)), "state": "active_pending_free"}
    gradient = [frame("??", 0, "torch::autograd::Engine::thread_main")]
    history = [
        action("segment_alloc", 0, 20 * MB),
        action("alloc", 8 * MB, 5 * MB, stack(14)),
        action("alloc", 16 * MB, 4 * MB, stack(12)),
        action("free_requested", 8 * MB, 5 * MB),
        action("free_completed", 8 * MB, 5 * MB),
        action("free_completed", 900 * MB, 2 * MB),
        action("free_completed", 950 * MB, 1 * MB),
        {"action": "oom", "size": 12 * MB, "device_free": 1 * MB, "stream": 0, "frames": []},
    ]
    large = [used(8 * MB, stack(12), 7 * MB), free(8 * MB), used(4 * MB, stack(12))]
    small = [used(MB // 2, gradient), free(MB // 2), pending]
    return {
        "segments": [
            segment(0, *large),
            segment(100 * MB, free(20 * MB)),
            segment(200 * MB, *small, segment_type="small"),
            segment(300 * MB, used(2 * MB, []), segment_pool_id=(0, 1)),
            segment(0, used(6 * MB, stack(3, "Head.forward")), device=1),
        ],
        "device_traces": [history, []],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    where = tmp_path / "snapshot.pickle"
    where.write_bytes(pickle.dumps(a_training()))
    return where


def test_every_byte_of_the_reserved_memory_is_accounted_for(file: Path) -> None:
    taken = memory(file)

    assert taken.device == "cuda:0"
    assert taken.reserved_bytes == 44 * MB
    assert taken.allocated_bytes == 14 * MB + MB // 2
    assert taken.pending_bytes == 1 * MB
    assert taken.split_bytes == 8 * MB + MB // 2
    assert taken.unused_bytes == 20 * MB
    assert taken.answer == (
        "cuda:0 has 44.0 MB reserved and 14.5 MB of it allocated; 8.5 MB (19%) is lost to "
        "fragmentation; the largest owner is job/net.py:12 forward (12.0 MB, 77%)."
    )


def test_blocks_are_attributed_to_the_innermost_user_line(file: Path) -> None:
    owners = {one.owner: (one.bytes, one.blocks) for one in memory(file).entries}

    assert owners == {
        ("/job/net.py", 12, "forward", None): (12 * MB, 2),
        ("/job/net.py", 20, "forward", None): (1 * MB, 1),
        ("", 0, "no stack recorded", None): (2 * MB, 1),
        ("", 0, "no Python code on the stack", None): (MB // 2, 1),
    }


@pytest.mark.parametrize(
    ("file", "is_the_users"),
    [
        ("/home/me/torch/train.py", True),
        ("C:\\work\\net.py", True),
        ("<ipython-input-3>", True),
        ("/src/pytorch/torch/nn/functional.py", False),
        ("/src/pytorch/torch/_tensor.py", False),
        ("C:\\env\\Lib\\site-packages\\timm\\layers.py", False),
        ("/usr/lib/python3.12/threading.py", False),
    ],
)
def test_torch_and_installed_packages_are_not_user_code(file: str, is_the_users: bool) -> None:
    frames = [frame(file, 5, "inner"), frame("/job/net.py", 7, "forward")]
    Path("one.pkl").write_bytes(pickle.dumps({"segments": [segment(0, used(MB, frames))]}))

    [only] = memory("one.pkl").entries

    assert only.owner[:3] == ((file, 5, "inner") if is_the_users else ("/job/net.py", 7, "forward"))


def test_pools_explain_an_out_of_memory_error_despite_free_memory(file: Path) -> None:
    taken = memory(file)
    pools = {one.pool: one for one in taken.pools}

    assert list(pools) == ["large", "small", "large, private 0.1"]
    assert pools["large"].reserved_bytes == 40 * MB
    assert pools["large"].largest_free_bytes == 20 * MB
    assert pools["small"].largest_free_bytes == MB // 2
    assert pools["large, private 0.1"].largest_free_bytes == 0
    assert taken.failed_bytes == [12 * MB]
    assert "Failed  12.0 MB with 1.0 MB left on the device" in str(taken)


def test_streams_do_not_share_free_blocks() -> None:
    segments = [segment(0, used(MB, []), free(3 * MB)), segment(9 * MB, free(2 * MB), stream=7)]
    Path("one.pkl").write_bytes(pickle.dumps({"segments": segments}))

    pools = memory("one.pkl").pools

    assert [(one.stream, one.largest_free_bytes) for one in pools] == [(0, 3 * MB), (7, 2 * MB)]


def test_the_peak_is_found_in_a_history_that_begins_late(file: Path) -> None:
    peak = memory(file).peak

    assert peak is not None
    # 7 + 4 + ½ + 1 + 2 MB alive at the end, and 5 + 3 MB that were freed before.
    assert peak.bytes == 22 * MB + MB // 2
    assert peak.event == 2
    assert sum(one.bytes for one in peak.owners) == peak.bytes
    assert peak.owners[2].blocks == 2, "two blocks were allocated before the history"
    assert {one.owner[1:3]: one.bytes for one in peak.owners} == {
        (12, "forward"): 11 * MB,
        (14, "forward"): 5 * MB,
        (20, "forward"): 1 * MB,
        (0, "no stack recorded"): 2 * MB,
        (0, "no Python code on the stack"): MB // 2,
        (0, "allocated before the history began"): 3 * MB,
    }


def test_a_history_that_does_not_match_the_snapshot_gives_no_peak() -> None:
    history = [[action("alloc", 0, 50 * MB)]]
    content = {"segments": [segment(0, used(MB, []))], "device_traces": history}
    Path("one.pkl").write_bytes(pickle.dumps(content))

    taken = memory("one.pkl")

    assert taken.peak is None
    assert "no peak: the history does not lead to the blocks of the snapshot" in str(taken)


def test_without_a_history_the_report_says_how_to_record_one() -> None:
    Path("one.pkl").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))

    text = str(memory("one.pkl"))

    assert text.startswith("The allocator had reserved no memory")
    assert "_record_memory_history()" in text


def test_another_device_has_its_own_report(file: Path) -> None:
    taken = memory(file)

    assert taken.devices == ["cuda:0", "cuda:1"]
    assert taken.on("cuda:1").reserved_bytes == 6 * MB
    assert taken.on("cuda:1").entries[0].owner.function == "Head.forward"
    with pytest.raises(errors.LookupFailedError, match="only on cuda:0, cuda:1"):
        taken.on("cuda:2")


class Harmful:
    """Unpickled as usual, it writes a file."""

    def __reduce__(self) -> Any:
        return (Path.write_text, (Path("harmed"), "yes"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused(protocol: int) -> None:
    Path("bad.pickle").write_bytes(pickle.dumps({**a_training(), "more": Harmful()}, protocol))

    with pytest.raises(errors.UnsafeFileError, match=r"it refers to \S+, and opening it could run"):
        memory("bad.pickle")
    assert not Path("harmed").exists()

    pickle.loads(Path("bad.pickle").read_bytes())
    assert Path("harmed").exists(), "the file is harmful"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty or cut short. Copy it again"),
        (pickle.dumps(a_training())[:-40], "cut short. Copy it again"),
        (b"PK\x03\x04 a checkpoint", "not a memory snapshot, or corrupt. Write one with"),
        (b"\x80\x04\x8c\x02\xff\xff.", "not a memory snapshot, or corrupt. Write one with"),
        (pickle.dumps({"weights": [1.0]}), "a pickle, but not a memory snapshot. Write one with"),
        (pickle.dumps({"segments": [3]}), "not in the format"),
        (pickle.dumps({"segments": [segment(0, free(1), total_size="9")]}), "not in the format"),
        (pickle.dumps({"segments": [{**segment(0), "total_size": "9"}]}), "'total_size' is '9'"),
    ],
)
def test_a_file_that_is_not_a_snapshot_is_refused_with_advice(
    capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    Path("odd.pickle").write_bytes(content)

    with pytest.raises(errors.TargetError) as caught:
        memory("odd.pickle")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)

    assert main(["memory", "odd.pickle"]) == 2
    assert "Traceback" not in capsys.readouterr().err


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        return torch.softmax(query * self.key(x), -1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Attention() for _ in range(3)])
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self._end(x)

    def _end(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * 2
        found: torch.Tensor = self.head(self.body(scaled))
        return found


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the Python stack of each op, as torch records it for each allocation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.blocks: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frames = [
            frame(at.f_code.co_filename, line, at.f_code.co_name)
            for at, line in traceback.walk_stack(sys._getframe(1))
        ]
        if str(func) != "aten.t.default":
            self.blocks.append(used(MB, frames))
        return func(*args, **(kwargs or {}))


def recorded_forward(model: nn.Module) -> Path:
    x = torch.ones(2, 8)
    with Recorded() as mode, torch.no_grad():
        model(x)
    where = Path("forward.pickle")
    where.write_bytes(pickle.dumps({"segments": [segment(0, *mode.blocks)]}))
    return where


EXPECTED = {
    "blocks.*.query": 3,
    "blocks.*.key": 3,
    "blocks.*": 6,
    "": 1,
    "body.*": 2,
    "body.1": 1,
    "head": 1,
}


def modules_of(taken: Any) -> Counter[str | None]:
    found: Counter[str | None] = Counter()
    for one in taken.entries:
        found[one.owner.module] += one.blocks
    return found


def test_with_the_model_each_block_has_the_module_that_was_running() -> None:
    taken = memory(recorded_forward(Net()), Net())

    assert modules_of(taken) == EXPECTED
    assert "blocks.*.query · " in str(taken)
    assert "(model) · " in str(taken)
    assert {one["module"] for one in taken.to_dict()["entries"]} == {*EXPECTED}


def test_a_watched_run_is_as_good_as_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()
    with watch(model, save="run.glass", verbose=False):
        model(torch.ones(2, 8)).sum().backward()
    file = recorded_forward(model)

    assert modules_of(memory(file, "run.glass")) == EXPECTED
    assert main(["memory", file.name, "--of", "run.glass"]) == 0
    assert "blocks.*.key · " in capsys.readouterr().out
    assert main(["memory", "net.py:Net", "--of", "run.glass"]) == 2
    assert "--of is for memory snapshots" in capsys.readouterr().err


def test_code_in_another_folder_is_found_by_the_name_of_its_file() -> None:
    file = recorded_forward(Net())
    here, there = str(Path(__file__).parent).encode(), b"/cluster/job"
    content = pickle.loads(file.read_bytes())
    text = json.dumps(content).encode().replace(here, there)
    file.write_bytes(pickle.dumps(json.loads(text)))

    assert modules_of(memory(file, Net())) == EXPECTED


def test_blocks_outside_of_the_model_have_no_module(file: Path) -> None:
    assert {one.owner.module for one in memory(file, Net()).entries} == {None}


def test_a_truncated_snapshot_raises_target_error() -> None:
    whole = pickle.dumps(a_training())
    for length in range(0, len(whole) - 1, 7):
        Path("cut.pickle").write_bytes(whole[:length])
        with pytest.raises(errors.TargetError):
            memory("cut.pickle")


def test_errors_name_missing_files_and_unused_arguments(file: Path) -> None:
    with pytest.raises(errors.TargetError, match=r"nowhere\.pickle: No such file"):
        memory("nowhere.pickle")
    with pytest.raises(errors.TargetError, match="pass the file, and a model or run"):
        memory(file, fake=True)


def test_the_command_line_prints_owners_pools_and_the_peak(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert main(["memory", file.name, "--peak"]) == 0
    text = capsys.readouterr().out

    assert "is lost to" in text
    for part in ("Allocated by", "job/net.py:12 forward", "Largest free block", "At the peak"):
        assert part in text
    assert main(["memory", file.name, "--input", "1x4"]) == 2
    assert "a memory snapshot is only read" in capsys.readouterr().err


def test_the_json_follows_its_schema_and_the_csv_has_a_line_per_owner(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert main(["memory", file.name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["schema", "memory-snapshot"]) == 0
    schema = json.loads(capsys.readouterr().out)

    jsonschema.Draft202012Validator(schema).validate(document)
    for part, name in (("entries", "SnapshotEntry"), ("pools", "SnapshotPool")):
        assert {*document[part][0]} == {*schema["$defs"][name]["properties"]}
    assert {*document} == {*schema["properties"]}
    assert document["split_bytes"] == 8 * MB + MB // 2
    assert memory(file).to_csv().splitlines()[1].startswith(",/job/net.py,12,forward,2,12582912,")
    assert "net.py:12 forward" in memory(file).to_html()
