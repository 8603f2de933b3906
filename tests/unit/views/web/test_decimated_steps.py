from __future__ import annotations

from collections.abc import Sequence

from torchglass.views.web.decimated_steps import StepColumns


def join(parts: Sequence[list[int]]) -> list[int]:
    return [number for part in parts for number in part]


def columns(steps: int, *, most: int = 8, at_once: int = 1) -> StepColumns[list[int]]:
    made = StepColumns(join, most)
    for start in range(0, steps, at_once):
        some = range(start, min(start + at_once, steps))
        made.extend(list(some), [[step] for step in some])
    return made


def test_few_steps_are_a_column_each() -> None:
    made = columns(5)

    assert [(column.first_step, column.last_step) for column in made.columns] == [
        (step, step) for step in range(5)
    ]
    assert made.width == 1


def test_many_steps_share_few_columns_and_none_is_lost() -> None:
    made = columns(1000)

    assert len(made.columns) <= 8
    assert made.width == 128
    assert join([column.content for column in made.columns]) == list(range(1000))
    assert made.last_step == 999


def test_the_number_of_steps_added_at_once_does_not_matter() -> None:
    assert (
        columns(777).columns
        == columns(777, at_once=777).columns
        == columns(777, at_once=50).columns
    )


def test_the_column_of_a_step_is_the_last_one_started_before_it() -> None:
    made = columns(16)

    found = made.at(5)

    assert found is not None
    assert found.content == [4, 5]
    assert made.at(-1) is None
    assert made.at(99) == made.columns[-1]


def test_adding_no_steps_changes_nothing() -> None:
    made = columns(3)

    made.extend([], [])

    assert len(made.columns) == 3
