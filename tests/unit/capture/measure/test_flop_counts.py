"""What is counted is what the arithmetic of the paper gives, forward and backward."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from benchmarks.models import ResNet18
from tests.models import Written
from tests.versions import needs_torch
from torchglass.api.measure import flops
from torchglass.results.flops import Flops

BATCH, LENGTH, WIDTH, HEADS, WORDS, LAYERS = 2, 16, 32, 4, 50, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (
            part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.attention(x)
        return x + self.mlp(self.norm(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


GPT_LINEARS = 2 * BATCH * LENGTH * (LAYERS * (3 + 1 + 4 + 4) * WIDTH**2 + WIDTH * WORDS)
GPT_PRODUCT = LAYERS * 2 * BATCH * LENGTH**2 * WIDTH
"""The queries by the keys of all heads, or what comes of it by the values."""


def tokens() -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, LENGTH))


def test_resnet_flops_match_the_paper() -> None:
    counted = flops(ResNet18().eval(), torch.randn(1, 3, 224, 224))

    assert counted.total_flops == 3_628_146_688
    assert counted.total_macs == 1_814_073_344
    assert not counted.uncounted


def test_the_backward_of_a_resnet_is_twice_the_forward_minus_the_image_gradient() -> None:
    counted = flops(ResNet18(), torch.randn(1, 3, 64, 64), backward=True)

    first = 2 * 64 * 32 * 32 * 3 * 7 * 7
    assert counted["conv1"].total_flops == 2 * first
    assert counted.backward_flops == 2 * counted.forward_flops - first


def test_the_flops_of_a_gpt_are_its_linears_and_fused_attention() -> None:
    counted = flops(GPT(), tokens())

    assert counted.total_flops == GPT_LINEARS + 2 * GPT_PRODUCT
    assert not counted.uncounted
    assert counted["blocks.0.attention"].forward.self_flops == 2 * GPT_PRODUCT // LAYERS
    assert counted["blocks"].total_flops + counted["head"].total_flops == counted.total_flops


def test_the_backward_of_fused_attention_has_five_matmuls() -> None:
    counted = flops(GPT(), tokens(), backward=True)

    assert counted.forward_flops == GPT_LINEARS + 2 * GPT_PRODUCT
    assert counted.backward_flops == 2 * GPT_LINEARS + 5 * GPT_PRODUCT
    attention = counted["blocks.1.attention"].backward.self_flops
    assert attention == 5 * GPT_PRODUCT // LAYERS


def test_the_backward_of_plain_attention_has_four_matmuls() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        counted = flops(GPT(), tokens(), backward=True)

    assert counted.forward_flops == GPT_LINEARS + 2 * GPT_PRODUCT
    assert counted.backward_flops == 2 * GPT_LINEARS + 4 * GPT_PRODUCT


def test_grouped_query_attention_is_counted_by_query_heads() -> None:
    q, kv = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8)
    model = Written(
        lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), {}
    )

    assert flops(model, q, kv, kv).total_flops == 2 * (2 * 2 * 6 * 5 * 7 * 8)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fused_encoder_layer_has_the_flops_of_its_parts(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 64, batch_first=True, dropout=0.0, norm_first=norm_first
    )
    x = torch.randn(BATCH, LENGTH, WIDTH)

    fused = flops(layer.eval(), x)
    parts = flops(layer.train(), x)

    rows = BATCH * LENGTH
    expected = 2 * rows * (4 * WIDTH**2 + 2 * WIDTH * 64) + 4 * rows * LENGTH * WIDTH
    assert [op.op for op in fused.ops] == ["aten._transformer_encoder_layer_fwd"]
    assert fused.total_flops == parts.total_flops == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_padded_batch_counts_no_padding_in_the_fused_encoder() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True), 2
    ).eval()
    lengths = (LENGTH, 5)
    mask = torch.arange(LENGTH)[None] >= torch.tensor(lengths)[:, None]

    counted = flops(encoder, torch.randn(2, LENGTH, WIDTH), src_key_padding_mask=mask)

    linears = 2 * sum(lengths) * (4 * WIDTH**2 + 2 * WIDTH * 64)
    attention = sum(4 * length**2 * WIDTH for length in lengths)
    assert counted.total_flops == 2 * (linears + attention)
    assert not counted.uncounted


@pytest.mark.parametrize("need_weights", [False, True])
def test_fused_multi_head_attention_has_the_flops_of_its_parts(need_weights: bool) -> None:
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    model = Written(lambda self, x: self.m(x, x, x, need_weights=need_weights)[0], {"m": attention})
    x = torch.randn(BATCH, LENGTH, WIDTH)

    fused = flops(model.eval(), x)
    parts = flops(model.train(), x)

    rows = BATCH * LENGTH
    assert [op.op for op in fused.ops if op.total_flops] == ["aten._native_multi_head_attention"]
    assert fused.total_flops == parts.total_flops
    assert fused.total_flops == 8 * rows * WIDTH**2 + 4 * rows * LENGTH * WIDTH


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm of three layers, both ways": lambda: nn.LSTM(3, 4, 3, bidirectional=True),
    "lstm with the batch first": lambda: nn.LSTM(3, 4, batch_first=True),
    "lstm with a projection": lambda: nn.LSTM(3, 6, 2, proj_size=4),
    "lstm without biases": lambda: nn.LSTM(3, 4, bias=False),
    "gru": lambda: nn.GRU(3, 4, 2, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4, 2),
}


def weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_net_uses_each_weight_once_per_step(name: str, train: bool) -> None:
    module = RECURRENT[name]()

    counted = flops(module, torch.randn(7, 5, 3), backward=train)

    assert counted.forward_flops == 2 * 7 * 5 * weights(module)
    assert not counted.uncounted


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize("name", ["lstm", "gru", "lstm with a projection"])
def test_a_packed_batch_counts_no_padding(name: str) -> None:
    module = RECURRENT[name]()
    packed = pack_padded_sequence(torch.randn(7, 3, 3), torch.tensor([7, 4, 1]))

    counted = flops(module, packed)

    assert counted.total_flops == 2 * (7 + 4 + 1) * weights(module)


def test_the_backward_of_an_lstm_is_twice_its_forward() -> None:
    counted = flops(nn.LSTM(3, 4), torch.randn(7, 5, 3, requires_grad=True), backward=True)

    assert counted.backward_flops == 2 * counted.forward_flops


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9), 2 * 6 * 4 * (4 * 3)),
    "2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 5, 5), 2 * 6 * 25 * (4 * 9)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 3 * 27 * (2 * 8)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5), 2 * 6 * 9 * (2 * 9)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 5, 5), 2 * 4 * 9 * 9),
    "dilated": (lambda: nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 9), 2 * 6 * 5 * (4 * 3)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), (2, 4, 5, 5), 2 * 4 * 25 * (6 * 9)),
    "transposed and grouped": (
        lambda: nn.ConvTranspose1d(4, 6, 3, groups=2),
        (2, 4, 5),
        2 * 4 * 5 * (3 * 3),
    ),
}
"""Each with the shape of its input and its multiplications."""


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_flops_of_a_convolution_and_its_gradients(name: str) -> None:
    make, shape, macs = CONVOLUTIONS[name]

    counted = flops(make(), torch.randn(shape, requires_grad=True), backward=True)

    assert counted.forward_flops == 2 * macs
    assert counted.backward_flops == 4 * macs


PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "mm": (torch.mm, [(3, 4), (4, 5)], 3 * 4 * 5),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
    "mv": (torch.mv, [(3, 4), (4,)], 12),
    "dot": (torch.dot, [(4,), (4,)], 4),
    "addmm": (torch.addmm, [(5,), (3, 4), (4, 5)], 3 * 4 * 5),
    "addmv": (torch.addmv, [(3,), (3, 4), (4,)], 12),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
    "matmul of many": (torch.matmul, [(2, 1, 3, 4), (6, 4, 5)], 2 * 6 * 3 * 4 * 5),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), [(2, 3, 4), (3, 4, 5)], 2 * 12 * 5),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)], 2 * 60),
    "einsum that sums first": (
        lambda a, b: torch.einsum("bijz,bkj->bik", a, b),
        [(2, 3, 4, 7), (2, 5, 4)],
        2 * 60,
    ),
    "einsum with an ellipsis": (
        lambda a, b: torch.einsum("...ij,jk->...ik", a, b),
        [(2, 6, 3, 4), (4, 5)],
        2 * 6 * 60,
    ),
    "bilinear": (F.bilinear, [(3, 4), (3, 5), (6, 4, 5)], 3 * 6 * 5 * (4 + 1)),
    "linear": (F.linear, [(2, 3, 4), (5, 4)], 2 * 3 * 4 * 5),
}
"""Each with the shapes of its arguments and its multiplications."""


@pytest.mark.parametrize("name", PRODUCTS)
def test_flops_of_a_matmul_follow_from_its_shapes(name: str) -> None:
    function, shapes, macs = PRODUCTS[name]
    arguments = [torch.randn(shape) for shape in shapes]

    counted = flops(function, *arguments)

    assert counted.total_flops == 2 * macs
    assert not counted.uncounted


@pytest.mark.parametrize("name", PRODUCTS)
def test_inference_mode_counts_the_same(name: str) -> None:
    function, shapes, macs = PRODUCTS[name]
    arguments = [torch.randn(shape) for shape in shapes]

    with torch.inference_mode():
        counted = flops(function, *arguments)

    assert counted.total_flops == 2 * macs


def test_the_backward_of_a_matmul_is_two_matmuls() -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    counted = flops(torch.mm, a, b, backward=True)

    assert (counted.forward_flops, counted.backward_flops) == (120, 240)


def test_an_unneeded_gradient_is_not_counted() -> None:
    counted = flops(nn.Linear(4, 5), torch.randn(3, 4), backward=True)

    assert (counted.forward_flops, counted.backward_flops) == (120, 120)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
def test_a_quantized_linear_has_the_flops_of_a_plain_one() -> None:
    plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    quantize: Callable[..., nn.Module] = torch.ao.quantization.quantize_dynamic
    quantized = quantize(copy.deepcopy(plain), {nn.Linear})
    x = torch.randn(3, 16)

    counted = flops(quantized, x)

    assert counted.total_flops == flops(plain, x).total_flops == 2 * 3 * (16 * 32 + 32 * 4)
    assert counted["0"].self_flops == 2 * 3 * 16 * 32


def test_a_sparse_matrix_counts_its_stored_values() -> None:
    sparse = torch.eye(6).to_sparse()

    counted = flops(torch.sparse.mm, sparse, torch.randn(6, 5))

    assert counted.total_flops == 2 * 6 * 5


class Experts(nn.Module):
    """Each token goes to one expert, by its own number."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> Any:
        weights = self.router(x).softmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                result.index_add_(0, rows, expert(x[rows]) * weights[rows, number, None])
        return result


def test_experts_are_counted_by_their_tokens() -> None:
    chosen = torch.tensor([0, 1, 1, 1, 0])

    counted = flops(Experts(), torch.randn(5, 8), chosen)

    assert counted["router"].total_flops == 2 * 5 * 8 * 3
    assert [counted[f"experts.{n}"].total_flops for n in (0, 1)] == [2 * 2 * 64, 2 * 3 * 64]
    assert "experts.2" not in counted.rows


@needs_torch(2, 8, "grouped products")
def test_a_grouped_matmul_counts_each_row_once() -> None:
    rows, groups = torch.randn(6, 16, dtype=torch.bfloat16), torch.tensor([2, 6], dtype=torch.int32)
    experts = torch.randn(2, 16, 8, dtype=torch.bfloat16)

    counted = flops(torch._grouped_mm, rows, experts, offs=groups)

    assert counted.total_flops == 2 * 6 * 16 * 8


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputation_is_counted_and_reported(reentrant: bool) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    forward = 2 * 2 * 3 * 64

    counted = flops(Checkpointed(reentrant=reentrant), x, backward=True)

    again = counted.recomputed_flops
    assert counted.forward_flops == forward
    # Without reentrance the last layer need not run again: nobody needs what it made.
    assert again == (forward if reentrant else forward // 2)
    assert counted.backward_flops == 2 * forward + again
    assert counted["inner.0"].recomputed_flops == forward // 2
    assert counted["inner"].total_flops == counted.total_flops
    assert f"{again:,} FLOPs of backward: recomputed by checkpointing" in str(counted)


def test_checkpoint_recomputation_is_distinguished_from_gradients() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    model = Written(
        lambda self, x: checkpoint(lambda y: (y @ weight).exp() @ weight, x, use_reentrant=True), {}
    )

    counted = flops(model, torch.randn(3, 8, requires_grad=True), backward=True)

    assert counted.recomputed_flops == counted.forward_flops == 2 * 2 * 3 * 64
    assert counted.backward_flops == 3 * counted.forward_flops


def test_compiled_modules_are_counted_as_python() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = torch.compile(model, backend="eager")

    counted = flops(compiled, torch.randn(3, 4), backward=True)

    assert counted.forward_flops == 2 * 3 * (4 * 8 + 8 * 2)
    assert any("compiled modules" in note for note in counted.work.notes)


def test_a_compiled_function_in_a_forward_is_counted_as_python() -> None:
    @torch.compile(backend="eager")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    counted = flops(Written(lambda self, x: square(x), {}), torch.randn(4, 4))

    assert counted.total_flops == 2 * 4**3


def test_a_fake_model_has_the_same_flops() -> None:
    x, model = tokens(), GPT()

    real, fake = (flops(model, x, backward=True, fake=fake) for fake in (False, True))

    assert fake.work.fake
    assert summed(fake) == summed(real)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_on_meta_is_counted() -> None:
    with torch.device("meta"):
        model = nn.Linear(4096, 4096)

    counted = flops(model, torch.empty(1024, 4096, device="meta"))

    assert counted.total_flops == 2 * 1024 * 4096**2


def summed(counted: Flops) -> dict[str, tuple[int, int]]:
    return {
        path: (row.forward.total_flops, row.backward.total_flops)
        for path, row in counted.rows.items()
    }


def test_self_flops_add_up_to_the_total() -> None:
    counted = flops(GPT(), tokens(), backward=True)

    every = [*counted.rows.values(), counted.unattributed]
    assert sum(row.self_flops for row in every) == counted.total_flops
    assert sum(op.total_flops for op in counted.ops) == counted.total_flops
    assert counted.total_bytes == sum(op.bytes for op in counted.ops)


def test_a_module_called_twice_counts_both_calls() -> None:
    layer = nn.Linear(4, 4)

    counted = flops(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(3, 4))

    assert counted["0"].calls == 2
    assert counted["0"].total_flops == counted.total_flops == 2 * 2 * 3 * 16


def test_the_bytes_of_a_matmul_are_those_of_its_matrices() -> None:
    counted = flops(torch.mm, torch.randn(3, 4), torch.randn(4, 5))

    moved = 4 * (3 * 4 + 4 * 5 + 3 * 5)
    assert counted.total_bytes == moved
    assert counted.intensity == pytest.approx(2 * 3 * 4 * 5 / moved)


def test_an_embedding_moves_its_rows_and_not_its_table() -> None:
    counted = flops(nn.Embedding(1000, 8), torch.tensor([1, 2, 3]))

    assert counted.total_bytes == 2 * (3 * 8 * 4) + 3 * 8


def test_a_user_loss_starts_the_backward_and_belongs_to_no_module() -> None:
    model, head = nn.Linear(4, 4), torch.randn(4, 4)

    counted = flops(
        model, torch.randn(3, 4), backward=True, loss=lambda output: (output @ head).sum()
    )

    assert counted.unattributed.forward.total_flops == 2 * 3 * 16
    assert counted.unattributed.backward.total_flops == 2 * 3 * 16
    assert counted.forward_flops == 2 * 2 * 3 * 16
    assert "unattributed" in str(counted)


def test_macs_are_half_of_the_flops() -> None:
    counted = flops(nn.Linear(4, 5), torch.randn(3, 4))

    assert counted.total_macs == math.prod((3, 4, 5))
