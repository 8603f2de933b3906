from __future__ import annotations

from tests import make
from torchglass.analyse.trace import TraceStructure
from torchglass.views.trace_text import trace_fragment

MODEL = make.model()


def test_each_op_is_a_row_with_its_parents_and_its_share_of_the_time() -> None:
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "relu", 0, end_ns=2_000_000),
        make.op(2, "tanh", 1, end_ns=1_000_000),
    ]

    html = trace_fragment(TraceStructure(make.trace(ops)), MODEL, frozenset())

    assert html.count("<tr>") == 1 + len(ops)
    assert '<td>tanh_1_2</td><td>2×3</td><td class="quiet">float32</td>' in html
    assert '<td class="quiet">relu_1_1</td>' in html
    assert 'style="--share: 50.0%">1.00ms</td>' in html


def test_the_error_of_a_pass_is_shown_above_its_rows() -> None:
    record = make.trace([make.op(0, "x", kind="input")], error="ValueError: <b>no</b>")

    html = trace_fragment(TraceStructure(record), MODEL, frozenset())

    assert '<p class="error">ValueError: &lt;b&gt;no&lt;/b&gt;</p>' in html


def test_the_middle_of_very_many_rows_is_omitted() -> None:
    ops = [make.op(number, "relu") for number in range(3_000)]

    html = trace_fragment(TraceStructure(make.trace(ops)), MODEL, frozenset())

    assert "… 2000 more …" in html
    assert html.count("<tr>") == 1 + 1_000 + 1
    assert "relu_3000_2999" in html
