"""Reduces the graph of a trace to the blocks that a figure in a paper shows.

A residual addition becomes "+", a norm or an activation joins the layer before it, a chain of
additions becomes one, and identical branches side by side are one block "× 8". What has no values
of the inputs, such as the positions of tokens, and arithmetic with constants are left out.

Modules nest. One that occurs at several places is drawn once, in its own panel.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from torchglass.records.model import Model
from torchglass.records.trace import Graph, Node, NodeId, PassInfo

Family = Literal[
    "input", "output", "convolution", "linear", "attention", "embedding", "pool", "norm",
    "activation", "join", "module", "other",
]  # fmt: skip

_MOST_BLOCKS = 64
"""With more blocks on a page, inner modules are closed."""
_FEWEST_BRANCHES = 4
"""Fewer identical branches are drawn separately: query, key and value stay apart."""
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
_SYMBOLS = {"add": "+", "iadd": "+", "sub": "−", "isub": "−", "mul": "×", "imul": "×"}
_CREATORS = re.compile(r"(zeros|ones|full|empty|rand|randn|arange)(_like)?|new_\w+")
_ARITHMETIC = re.compile(
    r"add|radd|iadd|sub|rsub|isub|mul|rmul|imul|div|truediv|rtruediv|itruediv|pow|neg|to|type|"
    r"float|half|bfloat16|double|type_as|clone|detach|contiguous|identity|clamp|"
    r"eq|ne|lt|le|gt|ge|bool|long|int"
)
_JOINED = re.compile(
    r"\w*norm\w*|\w*relu\d?|\w*gelu|silu|mish|tanh|sigmoid|\w*swish|leakyrelu|"
    r"hardtanh|hardsigmoid|softplus|logsoftmax|softmax"
)
_FAMILIES: tuple[tuple[Family, str], ...] = (
    ("attention", r".*attention.*|.*attn.*"),
    ("convolution", r".*conv.*"),
    ("embedding", r".*embed.*"),
    ("pool", r".*pool.*|upsample.*|interpolate|pixelshuffle"),
    ("norm", r".*norm.*"),
    ("linear", r".*linear|matmul|bmm|einsum|addmm|lstm|gru|rnn|lstmcell|grucell"),
    ("activation", r".*relu.*|.*gelu|silu|mish|tanh|sigmoid|softmax|logsoftmax"),
)
_Item = TypeVar("_Item")
_NAMES = {"cat": "concat", "scaled_dot_product_attention": "attention", "getitem": "select"}


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor on its way between two blocks of one module."""

    source: int | None
    """The index of the block; None for an input of the module."""
    target: int | None
    """The index of the block; None for an output of the module."""
    tensor: NodeId
    """The block that made it, anywhere in the model."""


@dataclass(slots=True)
class DiagramBlock:
    """A box of the figure: a layer, a "+", or a module with blocks inside."""

    name: str
    family: Family
    sizes: str = ""
    """What differs between blocks of one name: "64, stride 2"."""
    path: str = ""
    class_name: str = ""
    """For a module."""
    more: list[str] = field(default_factory=list)
    """The norms and activations that follow the layer."""
    times: int = 1
    """How many of it there are, one after another or side by side."""
    children: list[DiagramBlock] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    inputs: list[NodeId] = field(default_factory=list)
    """For a module: the tensors that enter it."""
    outputs: list[NodeId] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its text in the figure."""
        return ", ".join(filter(None, (self.name, self.sizes)))

    @property
    def is_symbol(self) -> bool:
        """Whether it is drawn as a sign in a circle."""
        return self.family == "join" and len(self.name) == 1

    def structure(self, *, with_sizes: bool) -> Hashable:
        """Equal for two blocks that are built in the same way."""
        inner = tuple((one.structure(with_sizes=with_sizes), one.times) for one in self.children)
        flows = frozenset((flow.source, flow.target) for flow in self.flows)
        kind = self.class_name or self.name
        return kind, self.sizes if with_sizes else "", tuple(self.more), inner, flows

    def walk(self) -> Iterator[DiagramBlock]:
        """It and all blocks inside."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class DiagramPanel:
    """A part of the page: the whole model, or a module that occurs several times."""

    title: str
    block: DiagramBlock


@dataclass(frozen=True, slots=True)
class BlockDiagram:
    """What a page shows."""

    info: PassInfo
    panels: tuple[DiagramPanel, ...]
    shapes: Mapping[NodeId, tuple[int, ...]]
    """The shape of each tensor, by the block that made it."""
    is_closed: bool
    """Whether modules were closed to fit the page."""


def block_diagram(graph: Graph, model: Model | None, depth: int | None = None) -> BlockDiagram:
    """The blocks of a folded graph; modules deeper than `depth` are closed, None: as fits."""
    flat = _FlatBlocks(graph, model)
    flat.simplify()
    root = flat.nested()
    _merge_branches(root)
    levels = _depth(root)
    chosen = levels if depth is None else min(depth, levels)
    panels = _panels(_closed(root, chosen))
    while depth is None and chosen > 1 and _count(panels) > _MOST_BLOCKS:
        chosen -= 1
        panels = _panels(_closed(root, chosen))
    shapes = {
        node: tuple(spec.shape)
        for node, spec in flat.specs.items()
        if spec is not None and spec.shape
    }
    return BlockDiagram(graph.pass_info, tuple(panels), shapes, chosen < levels)


class _FlatBlocks:
    """The layers of a graph without their modules, while they are simplified."""

    def __init__(self, graph: Graph, model: Model | None) -> None:
        self._boxes = {node.id: node for node in graph.boxes}
        self._nodes = {node.id: node for node in graph.leaves}
        self._modules = {one.path: one for one in model.modules} if model is not None else {}
        self.blocks = {node.id: self._block(node) for node in graph.leaves}
        self.specs = {node.id: node.outputs[0] if node.outputs else None for node in graph.leaves}
        self._after: dict[NodeId, dict[NodeId, None]] = defaultdict(dict)
        self._before: dict[NodeId, dict[NodeId, None]] = defaultdict(dict)
        for edge in graph.edges:
            self._link(edge.source, edge.target)

    def simplify(self) -> None:
        for node in list(self._nodes.values()):
            if self._is_constant(node):
                self._remove(node.id)
        for node in list(self._nodes.values()):
            if self._is_bypassed(node):
                self._bypass(node.id)
        for number in list(self._nodes):
            self._join_sum(number)
        for number in list(self._nodes):
            self._join_layer(number)
        for number in list(self._nodes):
            self._join_pass(number)

    def nested(self) -> DiagramBlock:
        """The blocks in their modules; a module of one block is that block."""
        root = DiagramBlock("", "module")
        modules: dict[NodeId | None, DiagramBlock] = {None: root}
        place: dict[int, int] = {}
        for node in sorted([*self._nodes, *self._boxes]):
            block = self.blocks.get(node) or self._module(self._boxes[node])
            around = modules[(self._nodes.get(node) or self._boxes[node]).parent]
            place[id(block)] = len(around.children)
            around.children.append(block)
            modules[node] = block
        for source in list(self._nodes):
            for target in self._after[source]:
                self._thread(source, target, modules, place)
        _drop_empty(root)
        return _unwrapped(root)

    def _thread(
        self,
        source: NodeId,
        target: NodeId,
        modules: Mapping[NodeId | None, DiagramBlock],
        place: Mapping[int, int],
    ) -> None:
        """Add the flow between two layers to all modules that it passes through."""
        above, below = self._around(source), self._around(target)
        common = 0
        while above[common] == below[common]:
            common += 1
        for outer, inner in zip(above[common:], above[common + 1 :], strict=False):
            module = modules[outer]
            _add(module.flows, Flow(place[id(modules[inner])], None, source))
            _add(module.outputs, source)
        for outer, inner in zip(below[common:], below[common + 1 :], strict=False):
            module = modules[outer]
            _add(module.flows, Flow(None, place[id(modules[inner])], source))
            _add(module.inputs, source)
        ends = [place[id(modules[chain[common]])] for chain in (above, below)]
        _add(modules[above[common - 1]].flows, Flow(ends[0], ends[1], source))

    def _around(self, leaf: NodeId) -> list[NodeId | None]:
        """The modules around a layer and the layer itself, outermost first."""
        chain: list[NodeId | None] = [leaf]
        parent = self._nodes[leaf].parent
        while parent is not None:
            chain.append(parent)
            parent = self._boxes[parent].parent
        return [None, *reversed(chain)]

    def _block(self, node: Node) -> DiagramBlock:
        function = node.detail.op.function if node.detail.op is not None else node.name
        path = node.module
        times = node.detail.repetition.times * node.detail.repetition.passes
        if node.kind in ("input", "output"):
            return DiagramBlock(
                function or node.kind, "input" if node.kind == "input" else "output"
            )
        if path:
            extra = self._modules[path].extra if path in self._modules else ""
            name, sizes = _layer_text(node.detail.class_name or function, extra)
            return DiagramBlock(name, _family(node.detail.class_name), sizes, path, times=times)
        plain = function.rpartition(".")[2].strip("_")
        used = [one.rpartition(".")[2] for one in node.detail.parameters]
        name = _SYMBOLS.get(plain) or _NAMES.get(plain) or plain.replace("_", " ")
        sizes = ""
        if used and plain in _SYMBOLS:
            name = f"{name} {', '.join(used)}"
        elif used and node.outputs and node.outputs[0].shape:
            sizes = str(node.outputs[0].shape[-1])
        is_join = plain in _SYMBOLS or plain in ("cat", "stack")
        return DiagramBlock(
            name, "join" if is_join else _family(plain), sizes, node.path, times=times
        )

    def _module(self, box: Node) -> DiagramBlock:
        repetition = box.detail.repetition
        times = repetition.times * repetition.passes
        kind = box.detail.class_name
        name = _own_name(box.path, times) if kind in _CONTAINERS else kind
        return DiagramBlock(name, "module", path=box.path, class_name=kind, times=times)

    def _function(self, node: NodeId) -> str:
        op = self._nodes[node].detail.op
        return op.function.rpartition(".")[2].strip("_") if op is not None else ""

    def _is_constant(self, node: Node) -> bool:
        if node.kind not in ("op", "call") or node.detail.parameters:
            return False
        return not node.detail.from_input or bool(_CREATORS.fullmatch(self._function(node.id)))

    def _is_bypassed(self, node: Node) -> bool:
        """Whether it changes no shape and mixes nothing: arithmetic with a constant."""
        if node.kind != "op" or node.detail.parameters or len(self._before[node.id]) > 1:
            return False
        if node.detail.class_name == "Identity" or "dropout" in self._function(node.id):
            return True
        return not node.module and bool(_ARITHMETIC.fullmatch(self._function(node.id)))

    def _join_sum(self, node: NodeId) -> None:
        """A sum that only another sum uses becomes part of it."""
        after = list(self._after[node])
        if self.blocks[node].name != "+" or len(after) != 1 or self.blocks[after[0]].name != "+":
            return
        if self._nodes[node].parent == self._nodes[after[0]].parent:
            for source in list(self._before[node]):
                self._link(source, after[0])
            self._remove(node)

    def _join_layer(self, node: NodeId) -> None:
        """A norm or activation becomes part of the layer before it."""
        before = list(self._before[node])
        if len(before) != 1 or not self._is_joined(node):
            return
        layer = before[0]
        block = self.blocks[layer]
        is_apart = self._nodes[layer].parent != self._nodes[node].parent
        if is_apart or len(self._after[layer]) != 1 or block.family in ("join", "input"):
            return
        if block.times != self.blocks[node].times:
            return
        block.more += [self.blocks[node].name, *self.blocks[node].more]
        self.specs[layer] = self.specs[node]
        for target in list(self._after[node]):
            self._link(layer, target)
        self._remove(node)

    def _join_pass(self, node: NodeId) -> None:
        """A layer that runs on its own result, as in a recurrent network, is one block."""
        block = self.blocks[node]
        for earlier in list(self._before[node]):
            one = self.blocks[earlier]
            if not block.path or (one.path, one.name, one.more) != (
                block.path,
                block.name,
                block.more,
            ):
                continue
            if self._before[node].keys() - {earlier} <= self._before[earlier].keys():
                one.times += block.times
                for target in list(self._after[node]):
                    self._link(earlier, target)
                self._remove(node)
                return

    def _is_joined(self, node: NodeId) -> bool:
        found = self._nodes[node]
        if found.kind != "op":
            return False
        name = found.detail.class_name or self._function(node)
        return bool(_JOINED.fullmatch(name.replace("_", "").lower()))

    def _bypass(self, node: NodeId) -> None:
        for source in list(self._before[node]):
            for target in list(self._after[node]):
                self._link(source, target)
        self._remove(node)

    def _link(self, source: NodeId, target: NodeId) -> None:
        self._after[source][target] = None
        self._before[target][source] = None

    def _remove(self, node: NodeId) -> None:
        for source in self._before.pop(node, {}):
            self._after[source].pop(node, None)
        for target in self._after.pop(node, {}):
            self._before[target].pop(node, None)
        del self._nodes[node], self.blocks[node]


def _own_name(path: str, times: int) -> str:
    """The name of a container without its own class: "layer1", "down.0"."""
    head, _, last = path.rpartition(".")
    if not last.isdecimal() or not head:
        return last
    word = head.rpartition(".")[2]
    return word if times > 1 else f"{word}.{last}"


def _family(name: str) -> Family:
    plain = name.replace("_", "").lower()
    return next((family for family, words in _FAMILIES if re.fullmatch(words, plain)), "other")


_SETTING = re.compile(r"(\w+)=(\([^)]*\)|[^,]+)")
_NUMBERS = re.compile(r"\d+")


def _layer_text(class_name: str, extra: str) -> tuple[str, str]:
    """The name of a layer, "3×3 Conv2d", and its sizes, "64, stride 2"."""
    settings = dict(_SETTING.findall(extra))
    plain = [one.strip() for one in _SETTING.sub("", extra).split(",") if one.strip()]
    kernel = _NUMBERS.findall(settings.get("kernel_size", ""))
    name, sizes = class_name, []
    if kernel:
        axes = re.search(r"([123])d", class_name)
        if len(kernel) == 1 and axes:
            kernel *= int(axes[1])
        name = f"{'×'.join(kernel)} {class_name}"
    if ("conv" in class_name.lower() and len(plain) > 1) or (
        class_name == "Embedding" and len(plain) > 1
    ):
        sizes.append(plain[1])
    elif "out_features" in settings:
        sizes.append(settings["out_features"])
    for key, said in (("stride", "stride"), ("dilation", "dilation"), ("groups", "groups")):
        values = _NUMBERS.findall(settings.get(key, ""))
        if values and set(values) != {"1"} and not (key == "stride" and values == kernel[:1]):
            sizes.append(f"{said} {values[0] if len(set(values)) == 1 else '×'.join(values)}")
    return name, ", ".join(sizes)


def _add(items: list[_Item], item: _Item) -> None:
    if item not in items:
        items.append(item)


def _without(block: DiagramBlock, gone: set[int]) -> None:
    """Remove children and renumber the flows between the others."""
    left = [number for number in range(len(block.children)) if number not in gone]
    block.children = [block.children[number] for number in left]
    ends: dict[int | None, int | None] = {None: None}
    ends.update((old, new) for new, old in enumerate(left))
    block.flows = [
        Flow(ends[flow.source], ends[flow.target], flow.tensor)
        for flow in block.flows
        if flow.source in ends and flow.target in ends
    ]


def _drop_empty(block: DiagramBlock) -> None:
    """Remove modules in which nothing is left."""
    for child in block.children:
        _drop_empty(child)
    empty = {
        number
        for number, child in enumerate(block.children)
        if child.family == "module" and not child.children
    }
    _without(block, empty)


def _unwrapped(block: DiagramBlock) -> DiagramBlock:
    """Replace each module of one block by that block."""
    block.children = [_unwrapped(child) for child in block.children]
    if block.path and len(block.children) == 1 and 1 in (block.times, block.children[0].times):
        [only] = block.children
        only.times *= block.times
        return only
    return block


def _merge_branches(block: DiagramBlock) -> None:
    """Make one block of identical branches side by side."""
    for child in block.children:
        _merge_branches(child)
    before, after = _neighbors(block)
    kind: dict[int, Hashable] = {
        number: child.structure(with_sizes=True) for number, child in enumerate(block.children)
    }
    count = 0
    while len(set(kind.values())) != count:
        count = len(set(kind.values()))
        kind = {
            number: hash(
                (
                    kind[number],
                    frozenset(kind.get(one, one) for one in before[number]),
                    frozenset(kind.get(one, one) for one in after[number]),
                )
            )
            for number in kind
        }
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, of_kind in kind.items():
        alike[of_kind].append(number)
    gone: set[int] = set()
    for first, *others in alike.values():
        if len(others) + 1 >= _FEWEST_BRANCHES and not set(others) & after[first]:
            merged = block.children[first]
            merged.times *= len(others) + 1
            if merged.class_name in _CONTAINERS:
                merged.name = _own_name(merged.path, merged.times)
            gone.update(others)
    _without(block, gone)


def _neighbors(block: DiagramBlock) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """The blocks before and after each child; -1 and -2 are the ends of the module."""
    before: dict[int, set[int]] = defaultdict(set)
    after: dict[int, set[int]] = defaultdict(set)
    for flow in block.flows:
        source = -1 if flow.source is None else flow.source
        target = -2 if flow.target is None else flow.target
        after[source].add(target)
        before[target].add(source)
    return before, after


def _depth(block: DiagramBlock) -> int:
    return max((_depth(child) + 1 for child in block.children if child.children), default=1)


def _closed(block: DiagramBlock, depth: int) -> DiagramBlock:
    """A copy in which modules below a depth show nothing of their inside."""
    if not depth:
        return dataclasses.replace(block, children=[], flows=[])
    return dataclasses.replace(
        block,
        children=[
            _closed(child, depth - 1) if child.children else child for child in block.children
        ],
    )


def _panels(root: DiagramBlock) -> list[DiagramPanel]:
    """The whole model, then each module that occurs several times, once."""
    counts: Counter[Hashable] = Counter()
    first: dict[Hashable, DiagramBlock] = {}
    _count_modules(root, counts, first)
    shared = {key: first[key] for key, count in counts.items() if count > 1}
    names = Counter(block.name for block in shared.values())
    numbers: Counter[str] = Counter()
    titles: dict[Hashable, str] = {}
    for key, block in shared.items():
        numbers[block.name] += 1
        letter = f" {chr(ord('A') + numbers[block.name] - 1)}" if names[block.name] > 1 else ""
        titles[key] = f"{block.name}{letter}"
    whole = _with_references(root, titles)
    rest = [
        DiagramPanel(titles[key], _with_references(block, titles, is_whole=True))
        for key, block in shared.items()
    ]
    return [DiagramPanel("", whole), *rest]


def _count_modules(
    block: DiagramBlock, counts: Counter[Hashable], first: dict[Hashable, DiagramBlock]
) -> None:
    for child in block.children:
        if not child.children:
            continue
        key = child.structure(with_sizes=False)
        is_shared = bool(child.class_name) and child.class_name not in _CONTAINERS
        if is_shared:
            counts[key] += 1
        if first.setdefault(key, child) is child or not is_shared:
            _count_modules(child, counts, first)


def _with_references(
    block: DiagramBlock, titles: Mapping[Hashable, str], *, is_whole: bool = False
) -> DiagramBlock:
    """A copy whose shared modules show nothing but their title."""
    title = titles.get(block.structure(with_sizes=False)) if block.children else None
    if title is not None and not is_whole:
        return dataclasses.replace(block, name=title, children=[], flows=[])
    return dataclasses.replace(
        block,
        times=1 if is_whole else block.times,
        children=[_with_references(child, titles) for child in block.children],
    )


def _count(panels: Iterable[DiagramPanel]) -> int:
    return sum(not one.children for panel in panels for one in panel.block.walk())
