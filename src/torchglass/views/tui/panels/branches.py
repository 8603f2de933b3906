"""What was opened of a live module: a tree of attributes that grows where someone looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchglass.records.attributes import Attribute, Page

PAGE = 100
"""How many items are listed at a time."""


@dataclass(slots=True, eq=False)
class Branch:
    """One attribute, or a stretch of the items of one."""

    attribute: Attribute
    parent: Branch | None = None
    stretch: range | None = None
    """Which items of the attribute it stands for; None for the attribute itself."""
    below: list[Branch] = field(default_factory=list)
    is_read: bool = False
    is_open: bool = False

    @property
    def depth(self) -> int:
        """How many branches it hangs on."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Its own name, after those of the branches that it hangs on but for the first."""
        if self.parent is None:
            return ()
        own = () if self.stretch is not None else (self.attribute.name,)
        return (*self.parent.names, *own)

    @property
    def place(self) -> str:
        """Where it is in what was opened: "config.sizes[3]"."""
        return "".join(f".{name}" if name[:1] != "[" else name for name in self.names)[1:]

    @property
    def is_module(self) -> bool:
        """Whether it is a module that was reached through modules alone, as those of the tree."""
        inside = self.parent is None or self.parent.is_module
        return self.attribute.role == "module" and inside

    @property
    def opens(self) -> bool:
        """Whether there may be anything below it."""
        return self.stretch is not None or self.attribute.opens

    @property
    def wanted(self) -> range:
        """The items to be asked for when it is opened."""
        return range(PAGE) if self.stretch is None else self.stretch

    def grow(self, page: Page) -> None:
        """Take in what was read, in stretches where it is more than a page."""
        self.is_read = self.is_open = True
        whole = range(page.total) if self.stretch is None else self.stretch
        if len(whole) > PAGE:
            self.below = [Branch(self.attribute, self, part) for part in stretches(whole)]
        else:
            self.below = [Branch(attribute, self) for attribute in page.attributes]

    def visible(self) -> Iterator[Branch]:
        """The branches below it that can be seen, in order."""
        for branch in self.below:
            yield branch
            if branch.is_open:
                yield from branch.visible()


def stretches(whole: range) -> list[range]:
    """A range in at most a page of parts of equal length."""
    each = PAGE
    while len(whole) > each * PAGE:
        each *= PAGE
    return [whole[at : at + each] for at in range(0, len(whole), each)]
