"""A forward raises, and its user reads what happened, where, and what would fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg
from torchglass import errors, explain


def story(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    """What a user reads of a forward that raises."""
    explanation = explain(model, *args, **kwargs)
    assert not explanation.ok
    return str(explanation)


class LeNet(nn.Module):
    """Made for images of 32×32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return torch.relu(self.fc1(x))


class Does(nn.Module):
    """A model whose forward is a function of itself and its inputs."""

    def __init__(self, forward: Any, **modules: nn.Module) -> None:
        super().__init__()
        self.does = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.does(self, *args)


def test_an_image_of_the_wrong_size_is_traced_to_the_line_that_flattened_it() -> None:
    told = story(LeNet(), torch.zeros(2, 1, 28, 28))

    assert "LeNet raised RuntimeError: mat1 and mat2 shapes cannot be multiplied" in told
    assert "linear in fc1, Linear(in_features=400, out_features=120, bias=True)" in told
    assert "return torch.relu(self.fc1(x))" in told
    assert "fc1 (Linear) expects 400 features" in told
    assert "was set by flatten_1_7" in told
    assert "(2×16×4×4 → 2×256)" in told
    assert "x = torch.flatten(x, 1)" in told


def test_the_suggested_sizes_actually_fit() -> None:
    told = story(LeNet(), torch.zeros(2, 1, 28, 28))

    assert "resize the model's input x to 2×1×32×32 (up to 2×1×35×35 also fits)" in told
    for size in (32, 35):
        assert explain(LeNet(), torch.zeros(2, 1, size, size)).ok
    for size in (31, 36):
        assert not explain(LeNet(), torch.zeros(2, 1, size, size)).ok
    changed = LeNet()
    changed.fc1 = nn.Linear(256, 120)
    assert "use Linear(256, 120)" in told
    assert explain(changed, torch.zeros(2, 1, 28, 28)).ok


def test_an_image_smaller_than_the_kernel_gets_the_minimum_size() -> None:
    told = story(LeNet(), torch.zeros(2, 1, 10, 10))

    assert "the window of conv2 (Conv2d) covers 5×5, but its input is only 3×3" in told
    assert "resize the model's input x to 2×1×14×14 or larger" in told
    assert "the window of conv2" not in story(LeNet(), torch.zeros(2, 1, 14, 14))


def test_a_missing_channel_dimension_is_suggested() -> None:
    told = story(LeNet(), torch.zeros(32, 28, 28))

    assert "expects 1 channel, but its input 32×28×28 has 32 in dimension 0" in told
    assert "input.unsqueeze(1) is 32×1×28×28" in told


def test_moving_channels_first_is_suggested_for_channels_last() -> None:
    told = story(nn.Sequential(nn.Conv2d(3, 8, 3)), torch.zeros(2, 16, 16, 3))

    assert "conv2d in module 0, Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))" in told
    assert "input.permute(0, 3, 1, 2)" in told


def test_the_layer_that_set_a_size_is_found_past_elementwise_ops() -> None:
    model = nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))

    told = story(model, torch.zeros(3, 10))

    assert "the 4 of input was set by linear_1_1 in module 0 (Linear(10→4))" in told
    assert "pass an input of shape 3×8" in told
    assert "use Linear(4, 2)" in told


class Shrinking(nn.Module):
    """Loses half its features in the third of five rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(5):
            x = torch.relu(self.cell(x))
            if step == 2:
                x = x[:, :4]
        return x


def test_in_a_loop_the_failing_iteration_and_its_difference_are_named() -> None:
    told = story(nn.Sequential(nn.Identity(), Shrinking()), torch.zeros(2, 8))

    assert "linear in 1.cell" in told
    assert "in call 4 of that module" in told
    assert "it ran 3 times earlier in this pass: input 2×8 then, 2×4 now" in told
    assert "x = x[:, :4]" in told


def test_a_layer_that_worked_before_is_not_suggested_for_change() -> None:
    told = story(nn.Sequential(nn.Identity(), Shrinking()), torch.zeros(2, 8))

    assert "pass an input of shape 2×8" in told
    assert "use Linear" not in told


def test_a_batch_dimension_broken_by_a_view_is_found_at_the_loss() -> None:
    def forward(self: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = images.view(-1, 8)
        return functional.cross_entropy(self.head(features), labels)

    told = story(
        Does(forward, head=nn.Linear(8, 3)), torch.zeros(4, 16), torch.zeros(4, dtype=torch.long)
    )

    assert "the target must be (8,) with class indices" in told
    assert "the 8 of input was set by view_1_2" in told
    assert "features = images.view(-1, 8)" in told


def test_an_index_beyond_the_embedding_is_named() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))

    told = story(model, torch.tensor([[1, 12]]))

    assert "module 0 (Embedding) has 10 rows, numbered 0 to 9, but the largest index is 12" in told
    assert "use an Embedding with at least 13 rows" in told


def test_classes_counted_from_one_are_recognized() -> None:
    told = story(nn.CrossEntropyLoss(), torch.zeros(3, 4), torch.tensor([1, 2, 4]))

    assert "target has class 4, but the valid classes are 0 to 3: the input has scores" in told
    assert "target - 1 goes to 3" in told


def test_a_residual_size_mismatch_names_both_source_ops() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.wide(x) + torch.relu(self.narrow(x))

    told = story(Does(forward, wide=nn.Linear(4, 6), narrow=nn.Linear(4, 5)), torch.zeros(2, 4))

    assert "left 2×6 and right 2×5 cannot be broadcast" in told
    assert "the 6 of left was set by linear_1_1 in wide (Linear(4→6))" in told
    assert "the 5 of right was set by linear_2_2 in narrow (Linear(4→5))" in told


def test_tensors_that_cannot_be_concatenated_are_listed_with_shapes() -> None:
    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], dim=0)

    told = story(Does(forward), torch.zeros(2, 3), torch.zeros(2, 4))

    assert "dimension 1 is 3 in tensors[0] 2×3 and 4 in tensors[1] 2×4" in told
    assert "join them along dimension 1" in told


def test_integer_input_to_a_layer_is_reported_as_a_dtype_error() -> None:
    told = story(nn.Linear(4, 2), torch.ones(2, 4, dtype=torch.long))

    assert "input is int64, weight is float32" in told
    assert "input.to(torch.float32)" in told


def test_a_batch_of_one_in_batch_norm_training_is_explained() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))

    told = story(model, torch.zeros(1, 3))

    assert "has a single value per channel" in told
    assert "call model.eval() first" in told
    assert explain(model.eval(), torch.zeros(1, 3)).ok


def test_a_check_in_torchs_own_python_code_is_explained_like_an_op() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.rnn(self.embed(x))

    told = story(Does(forward, embed=nn.Linear(6, 4), rnn=nn.LSTM(8, 5)), torch.zeros(2, 3, 6))

    assert "rnn, LSTM(8, 5)" in told
    assert "raised by torch's own Python code" in told
    assert "rnn (LSTM) has input_size=8, but the last dimension of its input 2×3×4 is 4" in told
    assert "was set by linear_1_1 in embed (Linear(6→4))" in told


def test_passing_an_lstm_tuple_to_a_linear_is_explained() -> None:
    told = story(nn.Sequential(nn.LSTM(8, 4), nn.Linear(4, 2)), torch.zeros(2, 3, 8))

    assert "linear expects a tensor as its input, but got a tuple" in told
    assert "pass input[0], which is 2×3×4" in told


class Cached(nn.Module):
    """Looks something up that is not there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: dict[str, torch.Tensor] = {}
        return x + found["yesterday"]


def test_a_python_error_in_user_code_names_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), Cached()))

    told = story(model, torch.zeros(1, 2))

    assert "Sequential raised KeyError: 'yesterday'" in told
    assert "module 1.1, Cached" in told
    assert "test_explain.py" in told
    assert 'return x + found["yesterday"]' in told
    assert "no torch operation failed" in told
    assert "relu_1_2" in told


def test_a_misspelled_layer_error_lists_existing_names() -> None:
    told = story(Does(lambda self, x: self.fcl(x), fc1=nn.Linear(2, 2)), torch.zeros(1, 2))

    assert "Does has no module, parameter or buffer called fcl; it has fc1" in told
    assert "self.fc1, which is close to it" in told


def test_a_successful_forward_is_reported_in_two_lines() -> None:
    explanation = explain(nn.Linear(3, 2), torch.zeros(4, 3))

    assert explanation.ok
    assert explanation.error is None
    assert explanation.note == ""
    first, second = str(explanation).splitlines()
    assert first.startswith("Linear completed: 1 op in 1 module call, ")
    assert second == "input 4×3 float32 → 4×2 float32"
    assert explanation.trace.output.shape == (4, 2)


def test_the_trace_up_to_the_failure_and_the_exception_are_available() -> None:
    explanation = explain(LeNet(), torch.zeros(2, 1, 28, 28))

    assert isinstance(explanation.error, RuntimeError)
    assert explanation.trace["conv2"].shape == (2, 16, 8, 8)
    assert explanation.trace.layer_labels[-1] == "flatten_1_7"
    with pytest.raises(errors.ViewError, match="it raised RuntimeError"):
        _ = explanation.trace.output


def test_the_note_names_op_module_line_and_shapes() -> None:
    note = explain(LeNet(), torch.zeros(2, 1, 28, 28)).note

    assert note.startswith("torchglass: linear in fc1, Linear(in_features=400")
    for fact in ("test_explain.py", "2×256", "120×400", "fc1.weight", "flatten_1_7"):
        assert fact in note


def test_the_drawing_marks_the_failed_op(tmp_path: Path) -> None:
    explain(LeNet(), torch.zeros(2, 1, 28, 28)).draw(tmp_path / "failed.svg")

    picture = (tmp_path / "failed.svg").read_text(encoding="utf-8")
    assert "linear raised" in picture
    assert "flatten_1_7" in picture


def test_explaining_does_not_change_the_model_or_the_random_state() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(3, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()

    explanation = explain(model, torch.ones(5, 4))

    assert not explanation.ok
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_user_text_is_not_interpreted_as_markup() -> None:
    class Rude(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("<script>alert(1)</script>\x1b[31m")

    explanation = explain(Rude(), torch.zeros(1))

    assert "<script>" not in explanation._repr_html_()
    assert "\x1b" not in str(explanation)
    assert "\x1b" not in explanation.note


X = torch.ones(2)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0
    ) -> Any:
        return self.fc.forward(x, scale) if mask is None else self.fc(x)  # type: ignore[call-arg]


class Inherited(Masked):
    pass


@pytest.mark.parametrize("model", [Masked(), Inherited()], ids=["own", "inherited"])
@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((X, X, X), {}), ((X,), {"scales": 1})],
    ids=["too few", "too many", "unknown"],
)
def test_wrong_arguments_are_answered_with_the_forward_signature(
    model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    told = story(model, *args, **named)

    assert (
        f"the forward of {type(model).__name__} expects "
        "(x: torch.Tensor, mask: torch.Tensor | None=None, *, scale: float=1.0)"
    ) in told


def test_the_signature_of_the_root_is_not_shown_for_an_inner_module() -> None:
    told = story(Masked(), X)

    assert "Linear.forward() takes 2 positional arguments but 3 were given" in told
    assert "the forward of" not in told


class Positions(nn.Module):
    """Tokens with positions of a fixed number, in one of the ways that models have them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.tokens, self.table = nn.Embedding(100, 8), nn.Embedding(16, 8)
        self.learned = nn.Parameter(torch.zeros(1, 16, 8))
        self.register_buffer("ids", torch.arange(16).expand(1, -1))
        self.register_buffer("mask", torch.ones(16, 16).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        y: torch.Tensor = self.tokens(x)
        if self.way == "expanded":
            y = y + self.table(self.get_buffer("ids")[:, :length].expand(len(x), length))
        elif self.way == "numbered":
            y = y + self.table(torch.arange(length))
        elif self.way == "looked up":
            y = y + self.table(self.get_buffer("ids")[:, :length])
        elif self.way == "sliced":
            y = y + self.learned[:, :length]
        elif self.way == "masked":
            seen = self.get_buffer("mask")[:length, :length] == 0
            y = (y @ y.mT).masked_fill(seen, -1e9)
        elif self.way == "whole":
            y = y + self.learned
        return y


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("expanded", "at most 16 tokens (buffer ids is 1×16)"),
        ("numbered", "at most 16 tokens (table (Embedding) has 16 rows)"),
        ("looked up", "at most 16 tokens (buffer ids is 1×16)"),
        ("sliced", "at most 16 tokens (parameter learned is 1×16×8)"),
        ("masked", "at most 16 tokens (buffer mask is 16×16)"),
        ("whole", "exactly 16 tokens (learned is 1×16×8)"),
    ],
)
def test_a_too_long_sequence_gets_the_maximum_length(way: str, why: str) -> None:
    told = str(tg.explain(Positions(way), torch.zeros(2, 20, dtype=torch.long)))

    assert f"the model accepts {why}, but input x 2×20 has 20" in told
    assert "cut the input to 16: x[:, :16]" in told
    assert "expand(" not in told.partition("What would fit here")[2]


def test_an_out_of_vocabulary_token_is_not_reported_as_a_too_long_sequence() -> None:
    told = str(tg.explain(Positions("sliced"), torch.full((2, 5), 100)))

    assert "tokens (Embedding) has 100 rows, numbered 0 to 99, but the largest index is 100" in told
    assert "at most" not in told


def test_a_feature_mismatch_is_not_reported_as_a_sequence_length() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    told = str(tg.explain(Shifted(), torch.ones(2, 4)))

    assert "the last dimension is 4 in one and 3 in the other" in told
    assert "exactly" not in told


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ([0, 3], {}, "target has class 3, but the valid classes are 0 to 2"),
        ([0, -1], {}, "target has class -1, but the valid classes are 0 to 2"),
        ([7, -1], {}, "target has class 7 and class -1, but the valid classes are 0 to 2"),
        ([7, -1], {"ignore_index": -1}, "target has class 7, but the valid classes are 0 to 2"),
        ([0.0, 1.0], {}, "contains class indices, so it must be int64, not float32"),
        ([0, 1, 2], {}, "the target must be (2,) with class indices"),
        ([[1, 0, 0], [0, 1, 0]], {}, "contains probabilities, so it must be floating point"),
    ],
)
def test_invalid_labels_get_the_valid_range(
    target: list[Any], options: dict[str, Any], why: str
) -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(x, y, **options)

    told = str(tg.explain(Loss(), torch.randn(2, 3), torch.tensor(target)))

    assert why in told
    assert ("ignore_index=-1, if -1 marks" in told) == (target == [0, -1])
