"""Pictures of what a model did: drawn, opened, and read against the trace they come from."""

from __future__ import annotations

import contextlib
import math
import os
import pty
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg
from tests.zoo_trace import AlexNet
from torchglass import Trace

SVG = "{http://www.w3.org/2000/svg}"


class Attention(nn.Module):
    """Causal self-attention written out, with the mask in a buffer."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 4, width // 4).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // 4)
        mask = self.get_buffer("mask")[:length, :length]
        weights = functional.softmax(scores.masked_fill(mask == 0, -math.inf), dim=-1)
        joined = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        result: torch.Tensor = self.out(joined)
        return result


class Block(nn.Module):
    """Attention and an MLP, each with a norm before and a residual around it."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, length)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """A small decoder of a number of blocks."""

    def __init__(self, blocks: int, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.places = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, length) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50, bias=False)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Recurrent(nn.Module):
    """An LSTM cell over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], 8)
        for step in range(x.shape[0]):
            h, c = self.cell(x[step], (h, c))
        result: torch.Tensor = self.out(h)
        return result


@pytest.fixture(scope="module")
def gpt() -> Trace:
    return tg.trace(GPT(12), torch.arange(8)[None])


def names(picture: bytes) -> list[str]:
    """The names of the nodes in an SVG."""
    return [
        group.get("id", "")
        for group in ElementTree.fromstring(picture).iter(f"{SVG}g")
        if group.get("class") == "node"
    ]


def texts(picture: bytes) -> set[str]:
    found = ElementTree.fromstring(picture).iter(f"{SVG}text")
    return {(text.text or "").strip() for text in found}


def shape(picture: bytes) -> float:
    """Width to height."""
    box = ElementTree.fromstring(picture).get("viewBox", "").split()
    return float(box[2]) / float(box[3])


def test_alexnet_fits_a_page(tmp_path: Path) -> None:
    trace = tg.trace(AlexNet().eval(), torch.rand(1, 3, 224, 224))

    picture = trace.draw(tmp_path / "alexnet.svg")

    assert 0.6 < shape(picture) < 1.6
    assert {"features", "classifier", "conv2d_3_7", "1×384×13×13 · 253.5 KB"} <= texts(picture)
    assert (tmp_path / "alexnet.svg").read_bytes() == picture


def test_every_node_can_be_looked_up_by_name(gpt: Trace) -> None:
    for picture in (gpt.draw(), gpt.draw(fold_repeats=False), gpt.draw(depth=1)):
        for name in names(picture):
            assert gpt[name] is not None


def test_twelve_blocks_are_drawn_as_one(gpt: Trace) -> None:
    picture = gpt.draw()

    assert {"12 × Block", "h.0 … h.11"} <= texts(picture)
    assert len(names(picture)) < 30


def test_a_gpt_at_depth_one_shows_its_blocks(gpt: Trace) -> None:
    folded, unfolded = gpt.draw(depth=1), gpt.draw(depth=1, fold_repeats=False)

    assert "12 × h.0 … h.11" in texts(folded)
    assert [name for name in names(unfolded) if name.startswith("h.")] == [
        f"h.{block}" for block in range(12)
    ]


def test_the_inputs_of_attention_are_labeled(gpt: Trace) -> None:
    assert {"left, right", "input", "mask"} <= texts(gpt.draw())


def test_the_mask_is_a_buffer_that_can_be_shown(gpt: Trace) -> None:
    assert "h.0.attention.mask" in names(gpt.draw(show_buffers=True))


def test_focus_draws_one_module_with_its_neighbors(gpt: Trace) -> None:
    picture = gpt.draw(focus="h.3.mlp")

    assert "GPT · h.3.mlp" in texts(picture)
    assert len(names(picture)) == 5


def test_a_rolled_recurrent_net_labels_which_passes_feed_which() -> None:
    trace = tg.trace(Recurrent(), torch.rand(4, 2, 4))

    rolled, unrolled = trace.draw(mode="rolled"), trace.draw()

    assert {"Out 1-3 / In 2-4", "Out 4"} <= texts(rolled)
    assert sum(name.startswith("lstmcell") for name in names(rolled)) == 1
    assert sum(name.startswith("lstmcell") for name in names(unrolled)) == 4


def test_batch_norms_in_training_are_one_node_each() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    picture = tg.trace(model, torch.rand(2, 3, 8, 8)).draw()

    assert len(names(picture)) == 5


def test_a_failed_forward_is_drawn_up_to_the_error() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(9, 8, 3))

    with pytest.raises(RuntimeError) as caught:
        tg.trace(model, torch.rand(1, 3, 16, 16))

    picture = caught.value.trace.draw()  # type: ignore[attr-defined]
    assert names(picture) == ["input_1_0", "conv2d_1_1", "relu_1_2", "✗ raised"]
    assert {"✗ conv2d raised", "params 8×9×3×3, 8", "@2"} <= texts(picture)


def test_drawings_can_be_colored_by_time_and_dark(gpt: Trace) -> None:
    light, dark = gpt.draw(color_by="time"), gpt.draw(color_by="time", dark=True)

    assert any(text.startswith("time, up to") for text in texts(light))
    assert light != dark


@pytest.mark.parametrize(("one", "other"), combinations(["down", "up", "right"], 2))
def test_a_drawing_has_the_same_nodes_in_every_direction(gpt: Trace, one: str, other: str) -> None:
    first = gpt.draw(direction=one)  # type: ignore[arg-type]
    second = gpt.draw(direction=other)  # type: ignore[arg-type]

    assert names(first) == names(second)


@pytest.mark.slow
@pytest.mark.slow
def test_two_thousand_ops_can_be_drawn() -> None:
    trace = tg.trace(GPT(80), torch.arange(8)[None])

    picture = trace.draw(fold_repeats=False, hide_views=False, depth=None)

    assert len(trace.ops) > 2000
    assert len(names(picture)) == len(trace.ops)
    assert 0.5 < shape(picture) < 2.0


def test_a_large_model_is_drawn_collapsed_and_says_how_to_expand_it() -> None:
    trace = tg.trace(GPT(24), torch.arange(8)[None])

    closed = trace.draw(fold_repeats=False)
    opened = trace.draw(fold_repeats=False, depth=None)

    title = next(text for text in texts(closed) if text.endswith("opens all"))
    assert "modules closed at depth 2, depth=None opens all" in title
    assert len(names(closed)) <= 300 < len(names(opened))
    assert "modules closed" not in " ".join(texts(opened))
    assert "modules closed" not in " ".join(texts(trace.draw()))


def test_an_explicit_depth_is_drawn_with_any_number_of_nodes() -> None:
    trace = tg.trace(GPT(24), torch.arange(8)[None])

    picture = trace.draw(fold_repeats=False, depth=3)

    assert len(names(picture)) > 300
    assert "modules closed" not in " ".join(texts(picture))


def test_a_large_model_without_submodules_is_drawn_completely() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(350):
                x = x.relu() if len(x) else x
            return x

    assert len(names(tg.trace(Flat(), torch.ones(2)).draw(fold_repeats=False))) == 352


def test_every_edge_of_a_large_drawing_is_drawn() -> None:
    trace = tg.trace(GPT(24), torch.arange(8)[None])

    picture = ElementTree.fromstring(trace.draw(fold_repeats=False, depth=None, hide_views=False))

    drawn = sum(group.get("class") == "edge" for group in picture.iter(f"{SVG}g"))
    assert drawn >= sum(bool(op.parents) for op in trace.ops)


def test_the_title_counts_the_parameters_of_the_model_and_those_that_ran() -> None:
    class PartlyUsed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.used(x)
            return result

    model = PartlyUsed()

    assert "1 op · 35 parameters (20 used) · 16 B of tensors" in texts(
        tg.trace(model, torch.ones(1, 4)).draw()
    )
    assert "1 op · 20 parameters · 16 B of tensors" in texts(
        tg.trace(model.used, torch.ones(1, 4)).draw()
    )


SLOW_DRAWING = """
import torch, torchglass as tg
from torch import nn

class Wide(nn.Module):
    def forward(self, x):
        made = [x * n for n in range(1, 80)]
        for _ in range(4):
            made = [a + b for a in made[:40] for b in made[40:50]][:400]
        return torch.stack(made)

tg.log_forward_pass(
    Wide(), torch.ones(2), vis_opt="unrolled", vis_outpath="wide", vis_save_only=True,
    vis_fileformat="svg", vis_graph_overrides={"splines": "ortho"},
)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_long_drawing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = subprocess.Popen(
        [sys.executable, "-c", SLOW_DRAWING], stdin=theirs, stdout=theirs, stderr=theirs,
        cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"Drawing " not in shown:
        shown += os.read(ours, 1000)
    listed = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text()
    children = [int(child) for child in listed.split()]
    script.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):
        while more := os.read(ours, 1000):
            shown += more
    os.close(ours)

    assert script.wait() != 0
    assert b"nodes: 1 s (Ctrl-C cancels)" in shown
    assert shown.rstrip().endswith(b"KeyboardInterrupt")
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_fontconfig_messages_are_not_shown_to_the_user(tmp_path: Path) -> None:
    (tmp_path / "fonts.conf").write_text("<fontconfig><unheard-of/></fontconfig>")
    script = (
        "import torch, torchglass as tg; tg.trace(torch.nn.ReLU(), torch.ones(2)).draw('a.svg')"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "FONTCONFIG_FILE": str(tmp_path / "fonts.conf")},
    )  # fmt: skip

    assert done.stderr == ""
    assert (tmp_path / "a.svg").exists()
