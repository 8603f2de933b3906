"""The models of the hold-out cases; none of them is used by the other cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import functional


class ResidualMLP(nn.Module):
    """Pre-norm residual blocks on vectors."""

    def __init__(self, features: int = 16, width: int = 32, depth: int = 4, out: int = 4) -> None:
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.SiLU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(self.norm(h))


class PreActBlock(nn.Module):
    """Norm, ReLU, convolution, twice, with a skip connection."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        y = self.conv1(functional.relu(self.norm1(x)))
        return x + self.conv2(functional.relu(self.norm2(y)))


class PreActNet(nn.Module):
    """A small pre-activation ResNet."""

    def __init__(
        self,
        channels: int = 1,
        width: int = 12,
        depth: int = 3,
        classes: int = 4,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.stages = nn.ModuleList(PreActBlock(width, norm) for _ in range(depth))
        self.norm = norm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Any:
        x = self.conv(x)
        for stage in self.stages:
            x = stage(x)
        return self.classifier(functional.relu(self.norm(x)).mean((2, 3)))


class RMSNorm(nn.Module):
    """Root mean square norm, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions for a tensor of (batch, heads, length, width)."""
    length, width = x.shape[-2:]
    speed = 100 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(length)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., 0::2], x[..., 1::2]
    return torch.stack([left * cos - right * sin, left * sin + right * cos], -1).flatten(-2)


class RotaryAttention(nn.Module):
    """Causal attention by SDPA with one projection for query, key and value."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(
            rotate(q), rotate(k), v, is_causal=True, scale=self.scale
        )
        return self.proj(y.transpose(1, 2).flatten(-2))


class LlamaBlock(nn.Module):
    """RMSNorm, rotary attention and SwiGLU."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(width)
        self.attn = RotaryAttention(width, heads, scale)
        self.mlp_norm = RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.attn_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A small decoder with rotary positions."""

    def __init__(
        self,
        vocabulary: int = 16,
        width: int = 32,
        depth: int = 2,
        *,
        tied: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, 4, scale) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class EncoderBlock(nn.Module):
    """A post-norm encoder block around torch's multi-head attention."""

    def __init__(self, width: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Any:
        mixed, _ = self.attn(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm1(x + mixed)
        return self.norm2(x + self.ff(x))


class ClsViT(nn.Module):
    """A ViT with a class token and linear patches."""

    def __init__(self, width: int = 32, depth: int = 2, classes: int = 4, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        count = (8 // patch) ** 2
        self.proj = nn.Linear(patch * patch, width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, count + 1, width) * 0.02)
        self.encoder = nn.ModuleList(EncoderBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def features(self, images: Tensor) -> Any:
        patches = functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        x = self.proj(patches)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.encoder:
            x = block(x)
        return x[:, 0]

    def forward(self, images: Tensor) -> Any:
        return self.head(self.features(images))


class GRUTagger(nn.Module):
    """A bidirectional GRU that predicts a class for each sequence."""

    def __init__(self, vocabulary: int = 16, width: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor) -> Any:
        out, _ = self.gru(self.embed(tokens))
        return self.fc(out.mean(1))


class Seq2Seq(nn.Module):
    """A GRU encoder and a GRU decoder with dot-product attention and teacher forcing."""

    def __init__(self, vocabulary: int = 12, width: int = 32) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(2 * width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        memory, state = self.encoder(self.source(source))
        shifted = functional.pad(target[:, :-1], (1, 0))
        hidden, _ = self.decoder(self.target(shifted), state)
        weights = (hidden @ memory.transpose(1, 2) / math.sqrt(hidden.shape[-1])).softmax(-1)
        return self.out(torch.cat([hidden, weights @ memory], -1))


class ConvVAE(nn.Module):
    """A convolutional VAE for 8x8 images."""

    def __init__(self, code: int = 6) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mu = nn.Linear(64, code)
        self.logvar = nn.Linear(64, code)
        self.dec = nn.Sequential(
            nn.Linear(code, 64),
            nn.ELU(),
            nn.Unflatten(1, (16, 2, 2)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Any, Any, Any]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


def double_conv(into: int, out: int) -> nn.Sequential:
    """Two convolutions with group norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1),
        nn.GroupNorm(4, out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Two levels down, two levels up, with skips."""

    def __init__(self, channels: int = 1, width: int = 8, out: int = 1) -> None:
        super().__init__()
        self.down1 = double_conv(channels, width)
        self.down2 = double_conv(width, 2 * width)
        self.middle = double_conv(2 * width, 2 * width)
        self.up2 = double_conv(4 * width, width)
        self.up1 = double_conv(2 * width, width)
        self.last = nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.down1(x)
        b = self.down2(functional.max_pool2d(a, 2))
        c = self.middle(functional.max_pool2d(b, 2))
        y = self.up2(torch.cat([b, functional.interpolate(c, scale_factor=2)], 1))
        y = self.up1(torch.cat([a, functional.interpolate(y, scale_factor=2)], 1))
        return self.last(y)


class GraphLayer(nn.Module):
    """Adds up messages over edges, and divides by the degree if asked."""

    def __init__(self, width: int, *, mean: bool = True) -> None:
        super().__init__()
        self.mean = mean
        self.message = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        source, target = edges
        summed = torch.zeros_like(x).index_add(0, target, self.message(x)[source])
        if self.mean:
            degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
            summed = summed / degree.clamp(min=1)[:, None]
        return functional.relu(self.update(torch.cat([x, summed], -1)))


class GraphNet(nn.Module):
    """Message passing, then a value for each node."""

    def __init__(
        self, features: int = 8, width: int = 24, depth: int = 3, out: int = 3, *, mean: bool = True
    ) -> None:
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.layers = nn.ModuleList(GraphLayer(width, mean=mean) for _ in range(depth))
        self.readout = nn.Linear(width, out)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        x = functional.relu(self.inp(x))
        for layer in self.layers:
            x = layer(x, edges)
        return self.readout(x)


class Denoiser(nn.Module):
    """Predicts the noise in a point, given the time."""

    def __init__(self, features: int = 2, width: int = 48) -> None:
        super().__init__()
        self.time = nn.Linear(16, width)
        self.inp = nn.Linear(features, width)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, features)

    def forward(self, x: Tensor, t: Tensor) -> Any:
        angle = t[:, None] * torch.exp(torch.linspace(0, 5, 8))
        return self.out(self.mid(self.inp(x) + self.time(torch.cat([angle.sin(), angle.cos()], 1))))


class ActorCritic(nn.Module):
    """Action logits and a value from one trunk."""

    def __init__(self, features: int = 6, width: int = 32, actions: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.Tanh())
        self.actor = nn.Linear(width, actions)
        self.critic = nn.Linear(width, 1)

    def forward(self, state: Tensor) -> tuple[Any, Any]:
        h = self.trunk(state)
        return self.actor(h), self.critic(h).squeeze(-1)


class DLRM(nn.Module):
    """Dense and categorical features, their dot products, and a click probability."""

    def __init__(
        self, dense: int = 5, rows: tuple[int, ...] = (50, 20, 200), width: int = 8
    ) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(dense, 16), nn.ReLU(), nn.Linear(16, width))
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Any:
        first = self.bottom(dense)
        vectors = [first] + [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(len(vectors), len(vectors), -1)
        return self.top(torch.cat([first, products[:, rows, columns]], 1)).squeeze(-1)


class TopTwoMixture(nn.Module):
    """Experts as one batched weight; each token goes to two of them."""

    def __init__(self, features: int = 16, experts: int = 4, width: int = 24, out: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(features, experts, bias=True)
        self.w1 = nn.Parameter(torch.randn(experts, features, width) / features**0.5)
        self.w2 = nn.Parameter(torch.randn(experts, width, features) / width**0.5)
        self.norm = nn.LayerNorm(features)
        self.head = nn.Linear(features, out)

    def forward(self, x: Tensor) -> Any:
        probabilities = self.gate(x).softmax(-1)
        values, chosen = probabilities.topk(2, -1)
        gates = torch.zeros_like(probabilities).scatter(-1, chosen, values)
        gates = gates / gates.sum(-1, keepdim=True)
        hidden = functional.gelu(torch.einsum("bf,efw->bew", x, self.w1))
        y = torch.einsum("bew,ewf,be->bf", hidden, self.w2, gates)
        return self.head(self.norm(x + y))


class MultiTask(nn.Module):
    """One trunk, a class and a value."""

    def __init__(self, features: int = 16, width: int = 32) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(features, width), nn.LeakyReLU(), nn.Linear(width, width), nn.LeakyReLU()
        )
        self.label = nn.Linear(width, 4)
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        h = self.trunk(x)
        return self.label(h), self.score(h).squeeze(-1)
