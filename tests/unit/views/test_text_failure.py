"""The story of a forward that raised, as text."""

from __future__ import annotations

from pathlib import Path

from tests import make
from torchglass.analyse.failure.failure import Failure
from torchglass.records.model import Model
from torchglass.records.trace import Operand, OpId, OpRecord, SourceLine, TraceRecord
from torchglass.views.failure_text import digest_text, failure_fragment, failure_note, failure_text

MODEL = make.model(
    {
        "children": {
            "body": {"class": "torch.nn.modules.linear.Linear", "extra": "3, 4", "weight": (4, 3)},
            "head": {
                "class": "torch.nn.modules.linear.Linear",
                "extra": "in_features=8, out_features=2",
                "weight": (2, 8),
            },
        }
    }
)


def record(tmp_path: Path, error: str = "RuntimeError: shapes") -> TraceRecord:
    """A pass whose second layer raised, with its source."""
    file = tmp_path / "net.py"
    file.write_text("x = self.body(x)\nx = self.head(x)\n", encoding="utf-8")
    lines = [SourceLine(file=str(file), line=line, function="forward") for line in (1, 2)]
    ops = [
        make.op(0, "x", kind="input", shape=(5, 3)),
        OpRecord(
            id=OpId(1),
            function="linear",
            call=make.call(1).id,
            operands=(
                Operand(place="0", spec=make.spec(5, 3), op=OpId(0)),
                Operand(place="1", spec=make.spec(4, 3), parameter="body.weight"),
            ),
            outputs=(make.value(5, 4),),
            site=1,
            source=lines[0],
        ),
    ]
    failed = OpRecord(
        id=OpId(2),
        function="linear",
        call=make.call(2).id,
        operands=(
            Operand(place="0", spec=make.spec(5, 4), op=OpId(1)),
            Operand(place="1", spec=make.spec(2, 8), parameter="head.weight"),
        ),
        site=2,
        source=lines[1],
    )
    calls = [make.call(0), make.call(1, "body", parent=0), make.call(2, "head", parent=0)]
    return make.trace(ops, calls, error=error, failed=failed)


def failure(tmp_path: Path, error: str = "RuntimeError: shapes", model: Model = MODEL) -> Failure:
    return Failure(record(tmp_path, error), model)


def test_an_explanation_goes_from_the_error_to_the_last_ops(tmp_path: Path) -> None:
    told = failure_text(failure(tmp_path))

    assert (
        told
        == f"""\
Net raised RuntimeError: shapes

  Where
    linear in head, Linear(in_features=8, out_features=2)
    File "{tmp_path / "net.py"}", line 2, in forward
        x = self.head(x)

  Tensors involved
    input   5×4  float32  linear_1_1 in body (Linear(3, 4)) at net.py:1
    weight  2×8  float32  parameter head.weight

  Why
    head (Linear) expects 8 features in the last dimension of its input, but that dimension is 4
    the 4 of input was set by linear_1_1 in body (Linear(3, 4)) at net.py:1 (5×3 → 5×4):
        x = self.body(x)

  What would fit here
    • pass an input of shape 5×8
    • use Linear(4, 2)

  The last operations before it
    input_1_0   5×3
    linear_1_1  5×4  body: Linear(3, 4)  net.py:1
    ✗ linear         head: Linear(8→2)   net.py:2"""
    )


def test_the_note_has_the_facts_without_headings(tmp_path: Path) -> None:
    note = failure_note(record(tmp_path), MODEL)

    first, *rest = note.splitlines()
    assert first == "torchglass: linear in head, Linear(in_features=8, out_features=2)"
    assert all(line.startswith("  ") for line in rest)
    assert "  weight  2×8  float32  parameter head.weight" in rest
    assert "Where" not in note


def test_a_multi_line_error_keeps_its_lines_and_drops_escapes(tmp_path: Path) -> None:
    told = failure_text(failure(tmp_path, "RuntimeError: a\nb\x1b[31m"))

    assert told.startswith("Net raised RuntimeError: a\nb\\x1b[31m\n")


def test_the_source_line_of_a_missing_file_is_omitted(tmp_path: Path) -> None:
    story = failure(tmp_path)
    (tmp_path / "net.py").unlink()

    told = failure_text(story)

    assert 'net.py", line 2' in told
    assert "self.head" not in told


def test_html_has_the_same_text_escaped(tmp_path: Path) -> None:
    html = failure_fragment(failure(tmp_path, "RuntimeError: <b>shapes</b>"))

    assert "&lt;b&gt;shapes&lt;/b&gt;" in html
    assert "<td>head.weight" not in html
    assert "<td>parameter head.weight</td>" in html
    assert "<code>x = self.body(x)</code>" in html
    assert "<li>use Linear(4, 2)</li>" in html


def test_a_successful_pass_is_two_lines() -> None:
    ops = [
        make.op(0, "x", kind="input", shape=(5, 3)),
        make.op(1, "relu", 0, shape=(5, 3)),
        make.op(2, "", 1, kind="output", shape=(5, 3)),
    ]
    ran = Failure(make.trace(ops, [make.call(0)], end_ns=2_000_000), make.model())

    assert digest_text(ran) == (
        "Net completed: 1 op in 1 module call, 2.00ms.\nx 5×3 float32 → 5×3 float32"
    )
    assert "Net completed" in failure_fragment(ran)
