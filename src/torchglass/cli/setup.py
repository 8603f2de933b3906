"""The commands for a first look and for the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.cli.options import STARTING, Debug, app


@app.command(group=STARTING, usage="Usage: torchglass demo [OPTIONS] [FOLDER]")
def demo(
    folder: Path | None = None,
    /,
    *,
    steps: Annotated[int, Parameter(validator=Number(gte=1))] = 300,
    debug: Debug = False,
) -> None:
    """Train a small model under tg.watch, then explore what was recorded.

    ```
    torchglass demo
    torchglass demo somewhere --steps 100
    ```

    Parameters
    ----------
    folder
        Folder for the run and its page; `torchglass-demo` by default.
    steps
        Training steps.
    """
    from torchglass.demo import run

    run(folder, steps=steps)


@app.command(group=STARTING)
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script for Tab completion in a shell.

    ```
    torchglass completion bash >> ~/.bashrc
    torchglass completion zsh > ~/.zfunc/_torchglass
    torchglass completion fish > ~/.config/fish/completions/torchglass.fish
    ```
    """
    print(app.generate_completion(shell=shell))
