"""Running a recorded pass again, op by op, to prove that its record is true.

Each op is run on what the replay itself has made so far, so views and in-place writes behave as
they did; where a result differs from the saved one, the replay goes on with the saved one, and the
ops after it are judged on their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchglass.analyse.trace.signatures import argument_name, signature
from torchglass.capture.forward.keeping import keeping_random_state
from torchglass.capture.tensor.extents import has_memory
from torchglass.capture.trace.assembling import Captured
from torchglass.capture.trace.reruns import Rerun
from torchglass.errors import CaptureError
from torchglass.records.trace import Doubt, Op, Validation

_INSENSITIVE = frozenset(
    {"zeroslike", "oneslike", "fulllike", "randlike", "randnlike", "zero", "fill"}
    | {"newzeros", "newones", "newfull"}
)
"""Ops that read only the shape of what they are given."""
_UNDEFINED = frozenset(
    {"empty", "emptylike", "emptystrided", "new", "newempty", "newemptystrided", "liftfresh"}
)
"""Ops whose results are whatever was in memory, or what `torch.tensor` put there out of sight."""


def validate(captured: Captured, *, perturb: bool = True) -> Validation:
    """Replay a pass and say where the record and the replay disagree, if they do."""
    with keeping_random_state(), torch.no_grad():
        torch.set_rng_state(captured.random_state)
        replay = _Replay(captured, perturb)
        for op in captured.trace.ops:
            replay.check(op)
    return Validation(
        replayed=replay.replayed,
        differing=tuple(replay.differing),
        unproven=tuple(replay.unproven),
        skipped=tuple(replay.skipped),
    )


class _Replay:
    """What the replay has made so far, by the tensors of the pass that it stands for."""

    def __init__(self, captured: Captured, perturb: bool) -> None:
        self._captured = captured
        self._perturb = perturb
        self._made: dict[int, torch.Tensor] = {}
        self.replayed = 0
        self.differing: list[Doubt] = []
        self.unproven: list[Doubt] = []
        self.skipped: list[Doubt] = []

    def check(self, op: Op) -> None:
        """Replay one op and compare what it makes with what was saved."""
        event = self._captured.events[op.id]
        if event is None or op.type in _UNDEFINED:
            originals = event.results if event else self._captured.sources.get(op.id, ())
            self._take_saved(op, originals)
            return
        try:
            self._check(op, event)
        except Exception as error:  # noqa: BLE001 - whatever an op raises, it cannot be replayed
            self.skipped.append(Doubt(op=op.id, reason=f"{type(error).__name__}: {error}"))
            self._take_saved(op, event.results)

    def _check(self, op: Op, event: Rerun) -> None:
        if self._perturb and op.type not in _INSENSITIVE:
            self._prove_edges(op, event)
        output = _run(op, event, self._ours(event.args), self._ours(event.kwargs))
        results = event._replace(output=output, written=self._ours(event.written)).results
        self.replayed += 1
        for number, (original, result) in enumerate(zip(event.results, results, strict=True)):
            saved = self._captured.tensors.get((op.id, number))
            self._made[id(original)] = result
            if saved is not None and not _equal(saved, result):
                self.differing.append(Doubt(op=op.id, reason=_difference(saved, result)))
                self._made[id(original)] = saved.clone()

    def _prove_edges(self, op: Op, event: Rerun) -> None:
        """Change each parent's result in turn: an edge is real if the op's own result changes."""
        with _random_state_kept():
            plain = self._run_apart(op, event, {})
        for operand in op.operands:
            original = _argument(event, operand.place)
            if operand.op is None or not original.is_floating_point() or original.numel() == 0:
                continue
            changed = {id(original): _perturbed(self._ours(original))}
            try:
                with _random_state_kept():
                    result = self._run_apart(op, event, changed)
            except Exception:  # noqa: BLE001 - not every op takes any numbers: `bernoulli` does not
                continue
            if all(_equal(one, other) for one, other in zip(plain, result, strict=True)):
                name = argument_name(operand.place, signature(op.function))
                self.unproven.append(Doubt(op=op.id, reason=f"another {name} changes nothing"))

    def _run_apart(
        self, op: Op, event: Rerun, changed: Mapping[int, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The results of an op on copies, so that what it writes is lost."""

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            given = changed.get(id(tensor))
            return self._ours(tensor).clone() if given is None else given

        copies: dict[int, torch.Tensor] = {}

        def copy_once(tensor: torch.Tensor) -> torch.Tensor:
            return copies.setdefault(id(tensor), copy(tensor))

        args, kwargs = tree_map_only(torch.Tensor, copy_once, (event.args, dict(event.kwargs)))
        output = _run(op, event, args, kwargs)
        written = tuple(map(copy_once, event.written))
        return event._replace(output=output, written=written).results

    def _ours(self, nest: Any) -> Any:
        return tree_map_only(torch.Tensor, self._stand_in, nest)

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._captured.out_of_sight:
            raise CaptureError("it uses a gradient to which a backward has added meanwhile")
        made = self._made.get(id(tensor))
        if made is None:
            if not has_memory(tensor):
                raise CaptureError("the model has freed the memory of what it was given")
            made = self._made[id(tensor)] = self._captured.before_writes(tensor)
        return made

    def _take_saved(self, op: Op, originals: tuple[torch.Tensor, ...]) -> None:
        for number, original in enumerate(originals):
            saved = self._captured.tensors.get((op.id, number))
            if saved is not None:
                made = saved.detach().clone()
                self._made[id(original)] = made.requires_grad_(original.requires_grad)


def _run(op: Op, event: Rerun, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An op with autograd on if it was, which chooses other kernels."""
    if any(isinstance(given, torch.Generator) for given in (*args, *kwargs.values())):
        raise CaptureError("it draws from a generator, which is not to be touched")
    with torch.set_grad_enabled(bool(op.grad_fn)):
        return event.function(*args, **kwargs)


def _argument(event: Rerun, place: str) -> Any:
    first, *inner = place.split(".")
    argument = event.args[int(first)] if first.isdecimal() else event.kwargs[first]
    for index in inner:
        argument = argument[int(index)]
    return argument


def _perturbed(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.rand(tensor.shape, generator=generator) + 0.5
    return tensor + noise.to(tensor) * (tensor.abs().mean() + 1)


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, except that any NaN is equal to any NaN."""
    one, other = one.detach(), other.detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _difference(saved: torch.Tensor, result: torch.Tensor) -> str:
    if saved.shape != result.shape or saved.dtype != result.dtype:
        return f"{_kind(saved)} was saved, {_kind(result)} came of the replay"
    if not saved.is_floating_point():
        return "other values"
    return f"values differ by up to {(saved - result).abs().max().item():.3g}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
