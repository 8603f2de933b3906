"""A model without its tensors: its modules, what its tensors look like, and its attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from torchglass.records.findings import Finding
    from torchglass.records.measures import CallPath
    from torchglass.records.run import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """The shape, dtype, device and size of a tensor, but not its values."""

    shape: tuple[int, ...] | None
    """None if not known yet, as in `LazyLinear` before its first forward."""
    dtype: str
    """torch's name without the prefix: "float32"."""
    device: str = "cpu"
    bytes: int = 0
    """Its size in memory; on "meta" the size it would have."""
    layout: str = "strided"
    """"strided", "sparse_coo", "jagged", …, or the name of a tensor subclass."""

    @property
    def elements(self) -> int:
        """The number of elements; 0 if the shape is not known yet."""
        if self.shape is None:
            return 0
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of a tensor. Minimum, maximum, mean and std are of its finite values."""

    count: int
    min: float
    max: float
    mean: float
    std: float
    nan: int = 0
    inf: int = 0
    negative_inf: int = field(default=0, repr=False, compare=False)
    """How many of `inf` are −Inf, as in masks; 0 if read from a run file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts on a dyadic grid: bin i reaches from `(first + i) · 2**exponent` to the next edge.

    All grids have edges at multiples of a power of two, so two histograms can be added without
    loss after the finer one is halved until its bins are as wide as those of the coarser one.
    """

    exponent: int
    first: int
    counts: tuple[int, ...]
    """Their sum is less than the number of finite values if only a sample was read, or if up to
    1 % of the values on a side are outside of the bins."""
    stats: Stats
    """Exact, over all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histograms:
    """Histograms of one series: `bins[i]` was measured at `steps[i]`."""

    series: Series
    steps: npt.NDArray[np.int64]
    bins: Sequence[Histogram]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """A part of one output as a grayscale picture: for images, the first channels side by side."""

    path: str
    name: str
    """The name of the series of the same values: "output", "eval:output.0"."""
    step: int
    """-1 in a trace."""
    spec: TensorSpec
    """The whole output."""
    low: float
    """The value of black."""
    high: float
    """The value of white."""
    rows: int
    columns: int
    pixels: str
    """One byte per pixel, row by row, in base64."""
    tiles: int = 1
    """The number of maps side by side in each row."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The latest activation pictures of a run, in the order in which their modules ran."""

    maps: tuple[FeatureMap, ...] = ()


AttributeId = NewType("AttributeId", int)
AttributeRole = Literal[
    "recorded", "parameter", "buffer", "module", "attribute", "property", "method", "item"
]
""""recorded" is an input or output of the module; "item" is an element of a container."""
Progress = Callable[[float], bool]
"""Takes the share of a task that is done, and returns whether to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """An attribute of a module, or of an object inside it."""

    id: AttributeId
    """Selects it in the methods of `LiveModel`."""
    name: str
    """"weight"; for an item its index: "[3]", "['lr']"."""
    role: AttributeRole = "attribute"
    type_name: str = ""
    """The name of its class; "" for a property, which is not called until it is opened."""
    text: str = ""
    """Its value in one line, "" if there is nothing to show."""
    spec: TensorSpec | None = None
    """Set for a tensor, which opens in the tensor viewer."""
    opens: bool = False
    """Whether it contains other objects."""
    reads: bool = False
    """Whether it has more text than one line."""
    encloses: bool = False
    """Whether it contains itself: it is one of the objects it was reached through."""
    problem: str = ""
    """The exception that reading it raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the attributes of an object."""

    attributes: tuple[Attribute, ...] = ()
    start: int = 0
    total: int = 0
    """The number on all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """The memory layout of a tensor, and its role in autograd."""

    spec: TensorSpec
    stride: tuple[int, ...] | None = None
    """None for a tensor that is not strided."""
    offset: int = 0
    """In elements, from the start of its storage."""
    storage_bytes: int = 0
    """The whole storage; the tensor may be a view of a part."""
    contiguous: bool = True
    requires_grad: bool = False
    grad_fn: str = ""
    has_grad: bool = False
    unreadable: str = ""
    """Why its values cannot be shown, "" if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHistogram:
    """A histogram with bins of equal width."""

    low: float
    high: float
    counts: tuple[int, ...]


Index = tuple[int | range | None, ...]
"""An index per dimension; one or two dimensions may have a range, or None for all of it."""


class LiveModel(Protocol):
    """A model that can be browsed attribute by attribute.

    Nothing is called, copied or changed except what is requested. An id is valid until another
    module is opened; after that it raises LookupFailedError.
    """

    def module(self, path: str) -> Attribute:
        """The module at a path."""

    def open(
        self, id: AttributeId, *, start: int = 0, most: int = 100, everything: bool = False
    ) -> Page:
        """A page of an object's attributes; `everything` adds private ones and methods."""

    def call(self, id: AttributeId) -> Attribute:
        """The value of a property; an exception becomes the attribute's problem."""

    def text(self, id: AttributeId) -> str:
        """The full text of an attribute, cut to a readable length."""

    def facts(self, id: AttributeId) -> TensorFacts:
        """The memory layout of a tensor."""

    def values(
        self, id: AttributeId, index: Index, rows: range, columns: range
    ) -> npt.NDArray[Any]:
        """Values of a tensor: two of its dimensions, cut to some rows and columns.

        A slice of one dimension, or a scalar, has one row.
        """

    def image(
        self, id: AttributeId, index: Index, height: int, width: int
    ) -> npt.NDArray[np.float32]:
        """Two dimensions of a tensor scaled to a number of pixels, by averaging."""

    def measure(self, id: AttributeId, progress: Progress, part: Index = ()) -> Stats | None:
        """Statistics of a tensor, or of a part of it.

        None if it has no values, or if `progress` stopped it.
        """

    def spread(
        self, id: AttributeId, stats: Stats, bins: int, progress: Progress, part: Index = ()
    ) -> LinearHistogram | None:
        """The histogram of the finite values that were measured."""

    def check(self, progress: Progress) -> tuple[Finding, ...] | None:
        """The parameters and buffers that contain NaN or Inf.

        None if there are no values, or if `progress` stopped it.
        """


ModuleId = NewType("ModuleId", int)
TensorId = NewType("TensorId", int)
SlotRole = Literal["parameter", "buffer", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter or buffer of a module."""

    name: str
    role: SlotRole
    """"packed" is a weight of a quantized module that torch does not list."""
    spec: TensorSpec
    tensor: TensorId
    """The same id in two slots means a shared tensor (tied weights)."""
    trainable: bool = False
    persistent: bool = True
    """False for a buffer that is not in the state dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One node of a model's tree."""

    id: ModuleId
    """Its index in `Model.modules`."""
    path: str
    """Dotted path in the model; "" is the model itself."""
    name: str
    """The last part of the path."""
    class_name: str
    """Qualified: "torch.nn.modules.conv.Conv2d"."""
    parent: ModuleId | None = None
    children: tuple[ModuleId, ...] = ()
    slots: tuple[Slot, ...] = ()
    extra: str = ""
    """Its `extra_repr`: "3, 64, kernel_size=(7, 7)"."""
    training: bool = True
    hooks: tuple[str, ...] = ()
    """The user's hooks, by kind and function name."""
    alias_of: ModuleId | None = None
    """The first occurrence of this same module in the tree; an alias has no children."""
    problem: str = ""
    """The error while reading this module; the rest of the model is still complete."""

    @property
    def kind(self) -> str:
        """The class name without its package: "Conv2d"."""
        return self.class_name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A class that another one inherits from."""

    class_name: str
    """Qualified, as in `Module.class_name`."""
    file: str = ""
    """The file of its code, "" if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSource:
    """The location of a class's code; the text is read on demand."""

    file: str
    forward_line: int | None = None
    """The line of `def forward` in the file; None if forward is not written in Python."""
    forward_file: str = ""
    """The file of `forward`, if it is inherited or was patched in from another file."""
    ancestors: tuple[Ancestor, ...] = ()
    """Its base classes in method resolution order, without `object`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Another part of a checkpoint besides the model."""

    name: str
    """Its key: "optimizer", "epoch"."""
    text: str = ""
    """A description: "3", "state of SGD with momentum"."""
    tensors: int = 0
    bytes: int = 0
    path: str = ""
    """The path of its tensors in the tree; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A whole model: its modules in the order of the tree, parents before children."""

    name: str
    modules: tuple[Module, ...]
    classes: Mapping[str, ClassSource] = field(default_factory=dict)
    """The sources of the classes by `Module.class_name`, where known."""
    origin: str = ""
    """The file it was read from; "" for a live model."""
    also_in_file: tuple[FilePart, ...] = ()
    """The other parts of a checkpoint."""

    @property
    def root(self) -> Module:
        """The model itself."""
        return self.modules[0]

    def __getitem__(self, id: ModuleId) -> Module:
        return self.modules[id]

    def children(self, module: Module) -> Iterator[Module]:
        """The modules directly below one, in order."""
        return (self.modules[child] for child in module.children)

    def find(self, path: str) -> Module | None:
        """The module at a dotted path, or None."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, Module]:
        # Reversed: the first of two modules with one path wins (dotted names allow two).
        return {module.path: module for module in reversed(self.modules)}

    @cached_property
    def tied(self) -> Mapping[TensorId, tuple[str, ...]]:
        """For each tensor in several slots, the dotted names of those slots, in order."""
        # Count first: few of the many tensors of a large model are tied.
        uses = Counter([slot.tensor for module in self.modules for slot in module.slots])
        if len(uses) == uses.total():
            return {}
        names: dict[TensorId, list[str]] = {tensor: [] for tensor in uses if uses[tensor] > 1}
        for module in self.modules:
            for slot in module.slots:
                if slot.tensor in names:
                    names[slot.tensor].append(join_path(module.path, slot.name))
        return {tensor: tuple(places) for tensor, places in names.items()}


def join_path(*parts: str) -> str:
    """The dotted path of its parts, without empty ones."""
    return ".".join(part for part in parts if part)


def paths_above(path: str) -> Iterator[str]:
    """The paths of the modules around one, innermost first, without the model's own ""."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def holders_of(places: Sequence[CallPath], index: int, called: Container[str]) -> Iterable[str]:
    """The paths whose totals include what runs at a call path, each once."""
    found = [""]
    place: int | None = index
    while place is not None:
        path = places[place].path
        # A container that is never called, such as a ModuleList, adds up its modules.
        found += [path, *(above for above in paths_above(path) if above not in called)]
        place = places[place].parent
    return dict.fromkeys(found)
