"""The user's choices of columns, panels, theme and folds, kept between sessions."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import platformdirs

from torchglass.records.model import Model
from torchglass.views.tui.tree_columns import BY_ID, COLUMNS, ColumnChoice
from torchglass.views.tui.tree_rows import Folds, Outline

_MOST_MODELS = 30
_MOST_FOLDS = 2_000
_SAVED = ("theme", "share", "panels", "repeats_folded", "filtering", "folds")


SourceKind = Literal["model", "forward", "trace", "run", "comparison", "failure", "report"]
"""What is explored: a model, a model with one forward, a trace, a training, …"""

_OF_FORWARD = frozenset({"name", "class", "args", "output", "params", "time", "notes"})
_OF_COMPARISON = ("a", "b", "distance", "change")
_COLUMNS: Mapping[SourceKind, frozenset[str]] = {
    **dict.fromkeys(("forward", "trace", "failure"), _OF_FORWARD),
    "report": frozenset({"name", "class", "params", "notes"}),
    "comparison": frozenset({"name", *_OF_COMPARISON, "notes"}),
}
"""The columns that are shown first; the usual ones for other kinds."""
_FIRST_PANEL: Mapping[SourceKind, str] = {
    "run": "v",
    "trace": "w",
    "failure": "E",
    **dict.fromkeys(("report", "comparison"), "R"),
}
_ALWAYS_FIRST: Mapping[SourceKind, str] = {"run": "V"}
"""The panel that is opened whatever was open in the last session: a run begins with its verdict."""
"""The panel in front at first; the panels open for models are behind it."""


@dataclass(frozen=True, kw_only=True)
class KindChoice:
    """The user's choice for one kind of source; None where nothing was chosen."""

    shown: frozenset[str] | None = None
    panels: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """How the explorer looks."""

    labels: ColumnChoice = field(default_factory=ColumnChoice)
    theme: str = ""
    """"" for the theme that fits the terminal."""
    share: int = 40
    """Percent of the screen that the panels take."""
    panels: tuple[str, ...] = ("i",)
    """The keys of the open panels, the one in front first."""
    repeats_folded: bool = False
    filtering: bool = True
    """Whether a search shows only its matches."""
    depth: int | None = None
    """How many levels are open at first; None for as many as fit."""
    folds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The paths that were open, by model; the latest model last."""
    by_kind: Mapping[str, KindChoice] = field(default_factory=dict)
    """Other columns and panels for other kinds of sources."""

    def for_kind(self, kind: SourceKind) -> Preferences:
        """These preferences with the columns and panels for a kind of source."""
        if kind == "model":
            return self
        choice = self.by_kind.get(kind, KindChoice())
        shown = choice.shown
        if shown is None:
            usual = self.labels.shown == ColumnChoice().shown
            shown = _COLUMNS.get(kind, self.labels.shown) if usual else self.labels.shown
        # A comparison always shows what changed, whatever was hidden in the last session.
        shown |= {*_OF_COMPARISON} if kind == "comparison" else set()
        first = _FIRST_PANEL.get(kind)
        rest = tuple(panel for panel in self.panels if panel != first)
        panels = choice.panels or ((first, *rest) if first else self.panels)
        always = _ALWAYS_FIRST.get(kind)
        return replace(
            self,
            labels=replace(self.labels, shown=shown),
            panels=(always, *(one for one in panels if one != always)) if always else panels,
        )

    def with_choices(
        self, kind: SourceKind, labels: ColumnChoice, panels: tuple[str, ...]
    ) -> Preferences:
        """These preferences with what was chosen while exploring a kind of source."""
        if kind == "model":
            return replace(self, labels=labels, panels=panels)
        before, known = self.for_kind(kind), self.by_kind.get(kind, KindChoice())
        choice = KindChoice(
            shown=labels.shown if labels.shown != before.labels.shown else known.shown,
            panels=panels if panels != before.panels else known.panels,
        )
        return replace(
            self,
            labels=replace(labels, shown=self.labels.shown),
            by_kind={**self.by_kind, kind: choice},
        )

    def first_folds(self, outline: Outline, room: int) -> Folds:
        """The folds to open first: those of the last session, or as many as fit."""
        paths = self.folds.get(_name(outline.model))
        if paths is None or self.depth is not None:
            return outline.first_folds(room, self.depth)
        found = map(outline.model.find, paths)
        return outline.foldable & {module.id for module in found if module}

    def with_folds(self, model: Model, paths: tuple[str, ...]) -> Preferences:
        kept = {name: folds for name, folds in self.folds.items() if name != _name(model)}
        if len(paths) <= _MOST_FOLDS:
            kept[_name(model)] = paths
        return replace(self, folds=dict(list(kept.items())[-_MOST_MODELS:]))


class PreferenceStore:
    """Keeps preferences in memory: each session starts with the defaults."""

    def __init__(self, preferences: Preferences | None = None) -> None:
        self.preferences = preferences or Preferences()

    def load(self) -> Preferences:
        return self.preferences

    def save(self, preferences: Preferences) -> None:
        self.preferences = preferences


class PreferenceFile(PreferenceStore):
    """Keeps preferences in a JSON file."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path or platformdirs.user_config_path("torchglass") / "explorer.json"

    def load(self) -> Preferences:
        """The stored preferences; the defaults if the file cannot be read."""
        try:
            return from_json(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, AttributeError):
            return Preferences()

    def save(self, preferences: Preferences) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Another explorer may read or write it at the same time.
            draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            draft.write_text(to_json(preferences), encoding="utf-8")
            draft.replace(self.path)


def to_json(preferences: Preferences) -> str:
    """Preferences as text."""
    labels = preferences.labels
    kept = {
        **{name: getattr(labels, name) for name in ("order", "shown", "aligned")},
        **{name: getattr(preferences, name) for name in _SAVED},
        "by_kind": {kind: asdict(choice) for kind, choice in preferences.by_kind.items()},
    }
    # Sets become sorted lists.
    return json.dumps(kept, indent=1, default=sorted)


def from_json(text: str) -> Preferences:
    """Preferences from text; a version with other columns may have written it."""
    kept: dict[str, Any] = json.loads(text)
    usual = Preferences()
    order = tuple(one for one in kept.get("order", ()) if one in BY_ID)
    known = {*kept.get("order", ()), "name"}
    new = [column for column in COLUMNS if column.id not in known]
    shown = frozenset(one for one in kept["shown"] if one in BY_ID) if "shown" in kept else None
    labels = ColumnChoice(
        order=(*order, *(column.id for column in new)),
        shown=usual.labels.shown
        if shown is None
        else shown | {column.id for column in new if column.usual},
        aligned=bool(kept.get("aligned", True)),
    )
    return Preferences(
        labels=labels,
        theme=str(kept.get("theme", "")),
        share=int(kept.get("share", usual.share)),
        panels=tuple(map(str, kept.get("panels", usual.panels))),
        repeats_folded=bool(kept.get("repeats_folded", False)),
        filtering=bool(kept.get("filtering", True)),
        folds={name: tuple(paths) for name, paths in kept.get("folds", {}).items()},
        by_kind={kind: _choice(found) for kind, found in kept.get("by_kind", {}).items()},
    )


def _choice(kept: Mapping[str, Any]) -> KindChoice:
    shown, panels = kept.get("shown"), kept.get("panels")
    return KindChoice(
        shown=None if shown is None else frozenset(one for one in shown if one in BY_ID),
        panels=None if panels is None else tuple(map(str, panels)),
    )


def _name(model: Model) -> str:
    """What identifies a model in another session."""
    return f"{model.root.class_name} {model.name} {len(model.modules)}"
