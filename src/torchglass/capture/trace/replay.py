"""Runs a recorded pass again, op by op, to prove that the record is correct.

Each op runs on the results of the replay so far, so views and in-place writes behave as before. If
a result differs from the saved one, the replay continues with the saved one, so that later ops are
judged separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from torchglass.analyse.signatures import argument_name, signature
from torchglass.capture.isolated_run import keeping_random_state
from torchglass.capture.tensor.description import Args, Kwargs, has_fakes, has_memory
from torchglass.capture.tensor.memory_extent import copy_of, each_element_once, repeated_memory
from torchglass.capture.torch_internals import tree_map_only
from torchglass.capture.torch_modes import TorchRandomState, gradients_set
from torchglass.capture.trace.assemble import CapturedPass
from torchglass.capture.trace.saved_tensors import Rerun
from torchglass.errors import CaptureError, uninterruptible
from torchglass.records.trace import OpRecord, UnconfirmedOp, Validation

_INSENSITIVE = frozenset(
    {"zeroslike", "oneslike", "fulllike", "randlike", "randnlike", "zero", "fill"}
    | {"newzeros", "newones", "newfull"}
)
"""Ops that read only the shapes of their arguments."""
_UNDEFINED = frozenset(
    {"empty", "emptylike", "emptystrided", "emptypermuted", "emptyquantized", "liftfresh", "new"}
    | {"newempty", "newemptystrided", "resize", "resizeas"}
)
"""Ops whose results are uninitialized memory, or were filled by `torch.tensor` unseen."""
_MOST_COMPARED = 1 << 24
"""Above this many elements, expanded tensors are compared by their memory."""
_OTHER_SHAPE = "a later op changed the shape of its result"
_OTHER_RANDOM_STATE = "it draws random values, and the random state was changed outside the trace"


def validate(captured: CapturedPass, *, perturb: bool = True) -> Validation:
    """Replay a pass and say where the record and the replay disagree, if they do."""
    with keeping_random_state(), gradients_set(False):
        captured.random_state.restore()
        replay = _OpReplay(captured, perturb)
        for op in captured.trace.ops:
            replay.check(op)
    return Validation(
        replayed=replay.replayed,
        differing=tuple(replay.differing),
        unproven=tuple(replay.unproven),
        skipped=tuple(replay.skipped),
    )


class _OpReplay:
    """The results of the replay so far, by the tensors of the pass."""

    def __init__(self, captured: CapturedPass, perturb: bool) -> None:
        self._captured = captured
        self._perturb = perturb
        self._made: dict[int, torch.Tensor] = {}
        self._last_write = {
            id(tensor): number
            for number, event in enumerate(captured.events)
            if event is not None
            for tensor in event.written
        }
        """The last op that wrote into a tensor, which may also have changed its shape."""
        self.replayed = 0
        self.differing: list[UnconfirmedOp] = []
        self.unproven: list[UnconfirmedOp] = []
        self.skipped: list[UnconfirmedOp] = []

    def check(self, op: OpRecord) -> None:
        """Replay one op and compare its results with the saved ones."""
        event = self._captured.events[op.id]
        if event is None or op.type in _UNDEFINED:
            originals = event.results if event else self._captured.sources.get(op.id, ())
            self._take_saved(op, originals)
            return
        try:
            self._check(op, event)
        except Exception as error:  # noqa: BLE001 - whatever an op raises, it cannot be replayed
            own = isinstance(error, CaptureError)
            reason = str(error) if own else f"{type(error).__name__}: {error}"
            self.skipped.append(UnconfirmedOp(op=op.id, reason=reason))
            self._take_saved(op, event.results)

    def _check(self, op: OpRecord, event: Rerun) -> None:
        if has_fakes(event.results):
            raise CaptureError("it ran on fake tensors, which have no values")
        if op.type.startswith("asstrided"):
            self._check_surroundings(event.args[0])
        self._keep_from(event.written)
        if self._perturb and op.type not in _INSENSITIVE:
            self._prove_edges(op, event)
        random_state = TorchRandomState()
        output = _run(op, event, self._ours(event.args), self._ours(event.kwargs))
        is_random = not random_state.is_current()
        results = event._replace(output=output, written=self._ours(event.written)).results
        self.replayed += 1
        for number, (original, result) in enumerate(zip(event.results, results, strict=True)):
            saved = self._captured.tensors.get((op.id, number))
            self._made[id(original)] = result
            if saved is None or _equal(saved, result):
                continue
            if (
                not saved.is_nested
                and saved.shape != result.shape
                and self._last_write.get(id(original), -1) > op.id
            ):
                self._skip(op, _OTHER_SHAPE)
                continue
            self._made[id(original)] = copy_of(saved)
            if is_random:
                self._skip(op, _OTHER_RANDOM_STATE)
            else:
                self.differing.append(UnconfirmedOp(op=op.id, reason=_difference(saved, result)))

    def _check_surroundings(self, tensor: torch.Tensor) -> None:
        """`as_strided` may read the whole storage, but a copy has only a part of it."""
        ours = self._stand_in(tensor)
        if (
            ours.untyped_storage().nbytes() != tensor.untyped_storage().nbytes()
            or ours.storage_offset() != tensor.storage_offset()
        ):
            raise CaptureError("it reads memory around its argument, which was not saved")

    def _keep_from(self, written: tuple[torch.Tensor, ...]) -> None:
        """Let an op write into copies of tensors from outside the pass."""
        for tensor in written:
            if self._stand_in(tensor) is tensor:
                self._made[id(tensor)] = copy_of(tensor)

    def _skip(self, op: OpRecord, reason: str) -> None:
        if not self.skipped or self.skipped[-1].op != op.id:
            self.replayed -= 1
            self.skipped.append(UnconfirmedOp(op=op.id, reason=reason))

    def _prove_edges(self, op: OpRecord, event: Rerun) -> None:
        """Change each parent's result: an edge is real if the op's result changes."""
        with _random_state_kept():
            plain = self._run_apart(op, event, {})
        for operand in op.operands:
            original = _argument(event, operand.place)
            if operand.op is None or not _has_values_to_change(original):
                continue
            changed = {id(original): _perturbed(self._ours(original))}
            try:
                with _random_state_kept():
                    result = self._run_apart(op, event, changed)
            except Exception:  # noqa: BLE001 - not every op takes any numbers: `bernoulli` does not
                continue
            if all(_equal(one, other) for one, other in zip(plain, result, strict=True)):
                name = argument_name(operand.place, signature(op.function))
                self.unproven.append(
                    UnconfirmedOp(op=op.id, reason=f"changing {name} does not change the result")
                )

    def _run_apart(
        self, op: OpRecord, event: Rerun, changed: Mapping[int, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The results of an op that runs on copies."""

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            given = changed.get(id(tensor))
            return copy_of(self._ours(tensor)) if given is None else given

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
            raise CaptureError("it uses a gradient that a later backward changed")
        made = self._made.get(id(tensor))
        if made is None:
            if not has_memory(tensor):
                raise CaptureError("the memory of its inputs was freed")
            if id(tensor) in self._captured.lazy:
                raise CaptureError("it uses a parameter of a lazy module that had no shape yet")
            made = self._made[id(tensor)] = self._captured.before_writes(tensor)
        return made

    def _take_saved(self, op: OpRecord, originals: tuple[torch.Tensor, ...]) -> None:
        for number, original in enumerate(originals):
            saved = self._captured.tensors.get((op.id, number))
            if saved is not None and not is_lazy(saved):
                made = copy_of(saved)
                self._made[id(original)] = made.requires_grad_(original.requires_grad)


def _run(op: OpRecord, event: Rerun, args: Args, kwargs: Kwargs) -> Any:
    """Run an op with autograd on if it was on, because that selects other kernels."""
    if any(isinstance(given, torch.Generator) for given in (*args, *kwargs.values())):
        raise CaptureError("it uses a random generator, which must not be advanced")
    with gradients_set(bool(op.grad_fn)):
        return event.function(*args, **kwargs)


def _argument(event: Rerun, place: str) -> Any:
    first, *inner = place.split(".")
    argument = event.args[int(first)] if first.isdecimal() else event.kwargs[first]
    for index in inner:
        argument = argument[int(index)]
    return argument


def _has_values_to_change(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and not tensor.is_meta


def _perturbed(tensor: torch.Tensor) -> torch.Tensor:
    changed = copy_of(tensor)
    memory = repeated_memory(changed)
    numbers = changed if memory is None else memory
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.rand(numbers.shape, generator=generator) + 0.5
    numbers.add_(noise.to(numbers) * (numbers.abs().mean() + 1))
    return changed


@uninterruptible
def _random_state_kept() -> Iterator[None]:
    state = TorchRandomState()
    try:
        yield
    finally:
        state.restore()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit for bit, except that all NaNs are equal."""
    one, other = one.detach(), other.detach()
    if one.is_nested and other.is_nested:
        parts = one.unbind(), other.unbind()
        return len(parts[0]) == len(parts[1]) and all(map(_equal, *parts))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta or other.is_meta:
        # There are no values to compare.
        return one.device == other.device
    one, other = _as_stored(one, other)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _as_stored(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of one shape, without elements that both repeat."""
    if (
        one.layout is not torch.strided
        or other.layout is not torch.strided
        or one.stride() != other.stride()
    ):
        return one, other
    one, other = each_element_once(one), each_element_once(other)
    if one.numel() > _MOST_COMPARED:
        # Overlapping windows, as `unfold` creates.
        memory, other_memory = repeated_memory(one), repeated_memory(other)
        if memory is not None and other_memory is not None:
            return memory, other_memory
    return one, other


def _difference(saved: torch.Tensor, result: torch.Tensor) -> str:
    if saved.shape != result.shape or saved.dtype != result.dtype:
        return f"{_kind(saved)} was saved, the replay gave {_kind(result)}"
    if not saved.is_floating_point():
        return "other values"
    saved, result = _as_stored(saved, result)
    return f"values differ by up to {(saved - result).abs().max().item():.3g}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
