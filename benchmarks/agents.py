"""How many planted mistakes an agent finds over MCP: `python -m benchmarks.agents`.

The agent is a script with a fixed policy of at most five calls and no knowledge of the mistake. It
talks to `torchglass mcp` in another process, with the client of the official SDK. The problems are
all planted mistakes of `benchmarks.diagnosis` that stand in the code of a model's class, so that
there is a line to find.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import re
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mcp import Client, StdioServerParameters

from benchmarks.diagnosis.cases import Case, Watch, all_cases
from benchmarks.diagnosis.score import is_right_place
from benchmarks.report import write_between_marks
from torchglass.integrations.mcp import token_count

PROBLEMS = {
    "softmax-over-a-single-logit": ("Binary", "nn.Softmax(1)"),
    "pooling-over-the-batch": ("_BatchPool", ".mean(0).mean(0"),
    "dropout-of-almost-all": ("Dropped", "nn.Dropout2d(0.98)"),
    "detach-before-the-head": ("_Detached", "hidden.detach()"),
    "no-grad-around-the-patches": ("_NoGradViT", "self.patches(images)"),
    "data-of-the-lstm-output": ("_DataLSTM", "outputs.data"),
    "argmin-without-straight-through": ("_Codebook", ".argmin(-1)"),
    "item-of-a-parameter": ("_ItemScale", ".item()"),
    "rounding-in-the-middle": ("_Rounded", "torch.round("),
    "one-tower-through-numpy": ("_NumpyTower", ".numpy()"),
    "router-behind-an-argmax": ("_HardRouter", "functional.one_hot("),
    "reentrant-checkpoint-without-input-gradient": ("_Checkpointed", "use_reentrant=True"),
    "embedding-looked-up-in-data": ("_FunctionalEmbedding", "self.tokens.weight.data"),
    "gradient-through-where": ("_SafeLog", "torch.log(x)"),
    "division-by-a-zero-norm": ("_UnitNorm", "x / x.pow(2)"),
    "attention-rows-all-masked": ("_PaddedAttention", "scores.softmax(-1)"),
    "key-padding-mask-of-an-empty-sample": ("Pooler", "key_padding_mask=mask"),
    "fractional-power-of-negative-values": ("_Gamma", "x**0.45"),
    "layers-in-a-plain-list": ("_PlainList", "self.layers = ["),
    "probabilities-of-a-gpt-in-cross-entropy": ("_SoftmaxGPT", "torch.softmax("),
    "norm-that-is-never-called": ("_ForgottenNorm", "self.norm = "),
    "last-block-never-called": ("_ShortLoop", "len(self.layers) - 1"),
    "one-tower-called-twice": ("Copied", "self.left(right)"),
    "copy-instead-of-a-tie": ("Mirrored", "nn.Parameter(first"),
    "float64-island": ("Island", ".double()"),
    "bfloat16-upcast-by-a-buffer": ("Scaled", "x * self.scale"),
}
"""The class and the text of the line with each mistake."""
MOST_CALLS = 5
_PLACE = re.compile(r"(\S+\.py):(\d+)")
_FINDING = re.compile(r"^\d+\. \w+: (\S+) at (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the agent found out about one mistake."""

    name: str
    kind: str = ""
    path: str = ""
    expected: str = ""
    has_path: bool = False
    has_line: bool = False
    calls: int = 0
    lines: int = 0
    """Lines of code named in all answers: the fewer, the more precise."""
    most_tokens: int = 0


def expected_line(case: Case, class_name: str, text: str) -> tuple[str, int]:
    """The file and the number of the line with a text, in a class of the case's module."""
    file = inspect.getsourcefile(case.train) or ""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    begin = next(
        n for n, line in enumerate(lines) if line.strip().startswith(f"class {class_name}")
    )
    return file, next(n for n, line in enumerate(lines[begin:], begin + 1) if text in line)


def record(names: Iterable[str], folder: Path) -> None:
    """Train each case under `tg.watch`, into a folder of its name."""
    cases = all_cases()
    for name in names:
        torch.manual_seed(0)
        (folder / name).mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                cases[name].train(Watch(folder / name, log_freq=1))
            finally:
                torch.set_default_dtype(torch.float32)
                torch.set_grad_enabled(True)


class Agent:
    """A fixed policy: list the runs, diagnose one, and look at the modules that it names."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers: list[str] = []

    async def investigate(self, folder: str) -> list[tuple[str, str]]:
        """The kinds and paths of the findings, the suspected cause first."""
        listing = await self._ask("runs", folder=folder)
        run = listing.splitlines()[1].partition(": ")[0]
        diagnosis = await self._ask("diagnose", run=run)
        found = _FINDING.findall(diagnosis)
        paths = dict.fromkeys(path for _, path in found[:1] if not path.startswith("the"))
        for path in list(paths):
            await self._ask("module", target=run, path=path)
            above = path.rpartition(".")[0]
            await self._ask("module", target=run, path=above)
        return found

    async def _ask(self, tool: str, **arguments: str) -> str:
        answer = await self._client.call_tool(tool, dict(arguments))
        text = "\n".join(getattr(part, "text", "") for part in answer.content)
        self.answers.append(text)
        return text


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Client]:
    """A client of `torchglass mcp`, which runs in another process."""
    source = str(Path(__file__).parents[1] / "src")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "torchglass", "mcp", str(folder)],
        env={"PYTHONPATH": source},
    )
    async with Client(server) as client:
        yield client


async def investigate_all(names: Sequence[str], folder: Path) -> list[Outcome]:
    """Let the agent investigate each run, and compare with what was planted."""
    async with serving(folder) as client:
        return [await _outcome(client, name) for name in names]


async def _outcome(client: Client, name: str) -> Outcome:
    case = all_cases()[name]
    agent = Agent(client)
    found = await agent.investigate(name)
    kind, path = found[0] if found else ("", "")
    path = "" if path == "the" else path
    file, line = expected_line(case, *PROBLEMS[name])
    places = (place for text in agent.answers for place in _PLACE.findall(text))
    named = {(str(Path(name).resolve()), number) for name, number in places}
    return Outcome(
        name=name,
        kind=kind,
        path=path,
        expected=f"{Path(file).name}:{line}",
        has_path=bool(found) and kind in case.kinds and is_right_place(case, path),
        has_line=(file, str(line)) in named,
        calls=len(agent.answers),
        lines=len(named),
        most_tokens=max(map(token_count, agent.answers)),
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The count, then each problem in a line."""
    both = sum(one.has_path and one.has_line for one in outcomes)
    calls = max(one.calls for one in outcomes)
    lines = sum(one.lines for one in outcomes) / len(outcomes)
    tokens = max(one.most_tokens for one in outcomes)
    rows = [
        f"| {one.name} | {one.kind or '–'} at `{one.path or 'the model'}` | "
        f"{'yes' if one.has_path else '**no**'} | "
        f"{one.expected} {'yes' if one.has_line else '**no**'} | {one.calls} |"
        for one in outcomes
    ]
    result = (
        f"The agent reached the module and the line of {both} of {len(outcomes)} mistakes, in at "
        f"most {calls} calls. All its answers together named {lines:.1f} lines of code on average, "
        f"and the longest answer had {tokens:,} tokens."
    )
    return "\n".join(
        [
            result,
            "",
            "| planted mistake | first finding | right module | line with the mistake | calls |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the runs, let the agent investigate them, and print or write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="renew the part of a page")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="agents-") as folder:
        record(PROBLEMS, Path(folder))
        text = markdown(asyncio.run(investigate_all(list(PROBLEMS), Path(folder))))
    print(text)
    if options.write:
        write_between_marks(options.write, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
