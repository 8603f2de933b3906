"""The command `torchglass`: one function per subcommand, each calling the verb of that name."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Each registers its commands.
from torchglass.cli import many_runs, plan_model, run_model, show_model  # noqa: F401
from torchglass.cli.options import app, explain_error, quiet_fakes, telling_warnings

FAILED = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; an error is one line on stderr."""
    words = _with_json_file(sys.argv[1:] if arguments is None else list(arguments))
    _prepare()
    try:
        with telling_warnings(), quiet_fakes():
            result = app(
                words, print_error=False, exit_on_error=False, result_action="return_value"
            )
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; to the null device that cannot fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
        explain_error(error, words)
    else:
        return result if isinstance(result, int) else 0
    return FAILED


def _with_json_file(words: Sequence[str]) -> list[str]:
    """The arguments, with "-" added after a `--json` without a file."""
    after = [*words[1:], ""]
    return [
        part
        for word, following in zip(words, after, strict=True)
        for part in ((word, "-") if word == "--json" and not _is_json_file(following) else (word,))
    ]


def _is_json_file(word: str) -> bool:
    # Any other word is the target, which must not be overwritten.
    return word == "-" or word.lower().endswith(".json")


def _prepare() -> None:
    # An installed script starts with its own folder on the path, not with the current one.
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    # A shell with >&- leaves no stream.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    # Not every terminal or pipe can write "├──"; a question mark is better than an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
