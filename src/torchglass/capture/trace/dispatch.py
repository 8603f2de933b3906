"""A dispatch mode below which torch runs, and compiles, as it does without one."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class LookingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that looks at kernels, of whatever kind, and changes nothing about them."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import dynamo to keep it out of a mode's method: seconds at the first kernel.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Else nothing is compiled below the mode: `torch.cond` loses its gradients, and functions
        # first called here stay uncompiled for good.
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
