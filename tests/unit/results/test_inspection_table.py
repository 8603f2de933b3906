from __future__ import annotations

from dataclasses import replace

from tests.inspections import inspected
from torchglass.results.inspection import Inspection

LINES = """\
Module   Class       Output  Params  Calls  Forward  share  Backward  share  Gradient  Memory fwd    bwd  NaN/Inf
Net      Net         2×2 +1      25      1   5.00ms   100%    8.00ms   100%  5.00e-01        20 B    0 B  output
├─ fc    Linear      2×2         25      1   2.50ms    50%    4.00ms    50%  5.00e-01        16 B  −16 B  output
└─ rest  ModuleList                      –
   └─ 0  ↗ fc                    25
fc (Linear) produced 2 NaN and 1 Inf: its inputs are finite.
Note: it was made by hand.
Gradient: root mean square of the gradient at the module's output.
"""  # noqa: E501


def test_a_table_has_a_line_per_module_and_marks_nan() -> None:
    shown = Inspection(inspected()).table().splitlines()

    assert [line for line in shown if line.strip("─")] == LINES.splitlines()


def test_depth_limits_the_shown_levels() -> None:
    shown = Inspection(inspected()).table(depth=1)

    assert "rest" in shown
    assert "↗" not in shown


def test_unmeasured_values_have_no_column() -> None:
    record = inspected()
    bare = replace(
        record,
        modules=tuple(replace(module, calls=(), call_count=0) for module in record.modules),
    )

    shown = Inspection(bare).table()

    assert "Backward" not in shown
    assert "Memory" not in shown
    assert "NaN" not in shown


def test_a_container_that_computes_nan_itself_is_named() -> None:
    record = inspected()
    root, layer, *rest = record.modules
    (call,) = layer.calls
    fine = replace(layer, calls=(replace(call, outputs=call.inputs),))

    shown = Inspection(replace(record, modules=(root, fine, *rest))).table()

    assert "Net (Net) produced 2 NaN and 1 Inf: its inputs are finite." in shown
