"""How many planted mistakes are named, and how many healthy trainings raise an alarm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.diagnosis.cases import Case, all_cases
from benchmarks.diagnosis.runner import run_all
from benchmarks.diagnosis.score import losses_text, markdown
from benchmarks.report import BEGIN, END, has_marks, write_between_marks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, print the score, and write it to a page if asked."""
    options = _options(arguments)
    results = run_all(chosen(options.only), options.log_freq, options.workers, options.seed)
    text = markdown(results)
    print(text)
    if options.losses:
        print(losses_text(results))
    if options.write:
        write_between_marks(options.write, text)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        nargs="+",
        metavar="NAME",
        help="groups, families, or parts of names; holdout-1 to -5 run only if named",
    )
    add("--log-freq", nargs="+", type=int, default=[1, 5, 20], metavar="N")
    add("--workers", type=int, default=2, help="processes (%(default)s)")
    add("--seed", type=int, default=0, help="another seed of weights and data (%(default)s)")
    add("--losses", action="store_true", help="also print the first and last loss of each case")
    add("--write", type=Path, metavar="FILE", help="renew the measured part of a page")
    options = parser.parse_args(arguments)
    if not chosen(options.only):
        parser.error(f"no case is called {' or '.join(options.only)}")
    if options.write and options.only:
        parser.error("a page is written from a whole run: leave --only out")
    if options.write and not has_marks(options.write):
        parser.error(f"{options.write} has no part between {BEGIN} and {END}")
    return options


def chosen(only: Sequence[str] | None) -> list[Case]:
    """The cases with these names; without any name all that are not of a hold-out."""
    cases = list(all_cases().values())
    if not only:
        return [case for case in cases if case.sample == "in-sample"]
    return [case for case in cases if any(_is_named(case, part) for part in only)]


def _is_named(case: Case, part: str) -> bool:
    in_sample = case.sample == "in-sample"
    return part in case.name or (in_sample and part in (case.group, case.family))


if __name__ == "__main__":
    sys.exit(main())
