"""Files that were damaged or made up are refused with an error of ours, and run nothing."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import torchglass as tg
from tests import inspections
from torchglass import TorchglassError, errors

TRIES = 60
CALL = "torchglass.replay"


def a_dump(folder: Path) -> Path:
    model = nn.Sequential(nn.ReLU())
    with tg.guard(model, on="record", dump=folder / "dumps") as watched:
        model(torch.tensor([-1.0, 2.0])).log().sum()
    assert watched.first is not None
    return Path(watched.first.facts["dump"])


def read_dump(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the notes of a dump; the note `CALL` is the op that it replays."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def a_trace(folder: Path) -> Path:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    return Path(tg.trace(model, torch.ones(4, 3)).save(folder / "pass.glass"))


def a_run(folder: Path) -> Path:
    path = folder / "run.glass"
    model = nn.Linear(3, 2)
    with tg.watch(model, save=path, verbose=False) as watcher:
        for step in range(3):
            model(torch.ones(1, 3)).sum().backward()
            watcher.log("loss", step)
            watcher.step()
    return path


def an_inspection(folder: Path) -> Path:
    result = tg.inspect(nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 3))
    return Path(result.save(folder / "inspection.json"))


def read_trace(path: Path) -> None:
    passed = tg.load(path)
    str(passed)
    for op in passed.ops:
        _ = op.tensor


def read_run(path: Path) -> None:
    with tg.open(path) as run:
        str(run)
        for name in run:
            _ = run[name].values
        str(run.findings)


def read_inspection(path: Path) -> None:
    str(inspections.read_inspection(path))


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object], str]] = {
    "dump": (a_dump, tg.replay, ""),
    "trace": (a_trace, read_trace, ""),
    "tensors of a trace": (a_trace, read_trace, ".safetensors"),
    "run": (a_run, read_run, ""),
    "inspection": (an_inspection, read_inspection, ""),
}


def damaged(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(changed))
        way = chance.randrange(4)
        if way == 0:
            changed[at] = chance.randrange(256)
        elif way == 1:
            del changed[at : at + chance.randrange(1, 30)]
        elif way == 2:
            changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
        else:
            changed[at : at + 1] = chance.choice([b"0", b"[", b"]", b"-1", b'"x"', b"null", b"{"])
        if not changed:
            return b""
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupt_file_is_read_or_raises_a_torchglass_error(kind: str, tmp_path: Path) -> None:
    make, read, suffix = KINDS[kind]
    good = make(tmp_path)
    spoiled = good.with_name(good.name + suffix)
    content = spoiled.read_bytes()
    chance = random.Random(kind)
    untyped = []
    for _ in range(TRIES):
        spoiled.write_bytes(damaged(content, chance))
        try:
            read(good)
        except TorchglassError:
            continue
        except Exception as error:  # noqa: BLE001 - whatever else comes is what is looked for
            untyped.append(repr(error))
    assert not untyped


def other_value(chance: random.Random) -> Any:
    return chance.choice([None, -1, 0.5, "x", True, [], {}, [[]], {"a": 1}, 10**30])


def changed(plain: Any, chance: random.Random) -> Any:
    """The same with one value, anywhere in it, replaced by one of another type."""
    if isinstance(plain, dict) and plain and chance.random() < 0.9:
        key = chance.choice(list(plain))
        return {**plain, key: changed(plain[key], chance)}
    if isinstance(plain, list) and plain and chance.random() < 0.9:
        index = chance.randrange(len(plain))
        return [*plain[:index], changed(plain[index], chance), *plain[index + 1 :]]
    return other_value(chance)


@pytest.mark.slow
def test_an_inspection_file_with_values_of_wrong_types_is_refused(
    tmp_path: Path,
) -> None:
    path = an_inspection(tmp_path)
    plain = json.loads(path.read_text())
    chance = random.Random(0)
    for _ in range(300):
        path.write_text(json.dumps(changed(plain, chance)))
        with contextlib.suppress(TorchglassError):
            read_inspection(path)


@pytest.mark.slow
def test_a_dump_with_values_of_wrong_types_is_refused(tmp_path: Path) -> None:
    tensors, notes = read_dump(a_dump(tmp_path))
    chance = random.Random(0)
    for number in range(150):
        path = tmp_path / f"{number}.safetensors"
        call = changed(json.loads(notes[CALL]), chance)
        save_file(tensors, path, {**notes, CALL: json.dumps(call)})
        with contextlib.suppress(TorchglassError):
            str(tg.replay(path))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("torch.ops.aten.from_file.default", ["{file}", True, 4096]),
        ("torch.from_file", ["{file}", True, 4096]),
        ("torch.ops.aten.save.default", [1, "{file}"]),
        ("torch.ops.custom.write.default", ["{file}"]),
    ],
)
def test_a_forged_dump_cannot_write_files(
    function: str, arguments: list[Any], tmp_path: Path
) -> None:
    precious, dump = tmp_path / "precious", tmp_path / "dump.safetensors"
    precious.write_bytes(b"x" * 10)
    tensors, notes = read_dump(a_dump(tmp_path))
    for target in (precious, tmp_path / "new"):
        finding = {"severity": "error", "kind": "nan", "message": "", "op": "log"}
        args = [str(target) if value == "{file}" else value for value in arguments]
        call = {
            "function": function,
            "args": {"is": "tuple", "of": args},
            "kwargs": {"is": "dict", "of": []},
            "autocast": [],
            "trained": [],
            "finding": finding,
        }
        save_file(tensors, dump, {**notes, CALL: json.dumps(call)})
        with pytest.raises((errors.UnsafeFileError, errors.CaptureError)):
            tg.replay(dump)

    assert precious.read_bytes() == b"x" * 10
    assert not (tmp_path / "new").exists()


def test_a_run_with_a_malicious_sql_view_is_refused(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    connection = sqlite3.connect(path)
    connection.executescript(
        "DROP TABLE meta; CREATE VIEW meta AS WITH RECURSIVE endless(key, value) AS "
        "(SELECT 'a', 'b' UNION ALL SELECT key, value FROM endless) SELECT * FROM endless;"
    )
    connection.close()

    with pytest.raises(errors.StoreError, match="views, triggers or virtual tables"):
        tg.open(path)


@pytest.mark.parametrize(
    ("part", "times"), [("[", 200_000), ("[", 60_000_000), ('{"modules": ', 100_000)]
)
def test_a_run_whose_document_decompresses_without_end_is_refused(
    tmp_path: Path, part: str, times: int
) -> None:
    path, packed = a_run(tmp_path), zlib.compress((part * times).encode())
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE documents SET json = ? WHERE kind = 'model'", [packed])
    connection.close()

    with pytest.raises(errors.StoreError, match="cannot read"), tg.open(path) as run:
        _ = run.model
