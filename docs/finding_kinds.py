"""The kinds of findings in docs/diagnose.md, written from the rules themselves."""

from __future__ import annotations

from pathlib import Path

from torchglass.analyse.diagnosis.conclude import all_rules
from torchglass.analyse.diagnosis.rule import Rule

PAGE = Path(__file__).parent / "diagnose.md"
BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
_AT_STEPS = (
    ("nan", "A value is NaN. The finding names the first one: input, module, loss or gradient."),
    ("inf", "A value is Inf, and neither a mask nor a GradScaler explains it."),
)
"""What single steps show, without a rule over the whole training."""
_OF_RANKS = (
    ("ranks-differ", "Ranks have different values of a parameter that they should share."),
    ("rank-not-finite", "A rank has NaN or Inf, and others may not."),
    ("rank-behind", "A rank stopped many steps before the others."),
    ("rank-left-out-steps", "A rank did not record some steps, as its disk was too slow."),
    ("straggler", "One rank takes longer than the others, which wait for it."),
)
"""What comparing the files of all ranks shows."""


def renewed(page: str) -> str:
    """The page with the kinds as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


def markdown() -> str:
    """All kinds as a table for each family."""
    families: dict[str, list[Rule]] = {}
    for rule in dict.fromkeys(all_rules().values()):
        families.setdefault(rule.family, []).append(rule)
    lines = ["## What Torchglass finds", "", "### numbers", "", *_HEAD]
    lines += [f"| `{kind}` | {text} |" for kind, text in _AT_STEPS]
    for family, rules in families.items():
        lines += ["", f"### {family}", "", *_HEAD]
        lines += [f"| {_kinds(rule)} | {rule.text.splitlines()[0]} |" for rule in rules]
    lines += ["", "### ranks", "", *_HEAD]
    lines += [f"| `{kind}` | {text} |" for kind, text in _OF_RANKS]
    return "\n".join([*lines, ""])


_HEAD = ("| kind | what it is |", "|---|---|")


def _kinds(rule: Rule) -> str:
    return ", ".join(f"`{kind}`" for kind in rule.kinds)
