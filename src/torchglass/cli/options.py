"""The command line's one application, and the options that its commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from torchglass import __version__
from torchglass.analyse.summary import Sort

LOOKING = Group("Show a model or a run", sort_key=1)
RUNNING = Group("Run a model", sort_key=2)
STARTING = Group("Get started", sort_key=3)

app = App(
    name="torchglass",
    version=__version__,
    group_commands=RUNNING,
    group_parameters="Options",
    help="""Turn a PyTorch model into a glass box.

A TARGET is one of:

- a model in a file or module: `net.py:Net`, `torchvision.models:resnet18` (a class, an instance,
  or a function that returns one)
- a checkpoint: `weights.safetensors`, `model.pt`, or a folder of shards
- a recorded run: `runs/mnist.glass`

Start with `torchglass demo`. Run `torchglass COMMAND --help` for examples.
""",
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)

for _flag in ("--help", "--version"):
    app[_flag].group = STARTING

# A path, so that the shells complete the names of files.
Target = Annotated[
    Path, Parameter(help="`net.py:Net`, `package.module:name`, a checkpoint or a run.")
]
Model = Annotated[Path, Parameter(help="`net.py:Net` or `package.module:name`.")]
File = Annotated[Path, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Inputs = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        show_default=False,
        help="Run one forward on a tensor of this shape: `1x3x224x224`, `2x16:long` (indices), "
        "`mask=2x16:bool` (by name). Repeat the option for each argument of forward.",
    ),
]


Debug = Annotated[Flag, Parameter(help="Show the traceback of an error.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """The options of every command that takes any target."""

    unsafe: Flag = False
    """Allow the checkpoint to run the code it contains (pickle). Only for files you trust."""
    debug: Debug = False


@Parameter(name="*")
@dataclass(frozen=True)
class DisplayOptions:
    """What to show of a model, and in which order."""

    input: Inputs = ()
    fake: Flag = False
    """Run that forward on fake tensors: no memory, no arithmetic."""
    depth: int | None = None
    """Levels below the model to show."""
    sort: Sort | None = None
    """Sort the modules of each parent by this."""
    fold: Flag = False
    """Show repeated modules as one row."""


USUAL = Common()
EVERYTHING = DisplayOptions()
