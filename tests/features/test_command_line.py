"""A person at a shell looks at a model, pipes it on, and is told what was wrong."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.command_line import main

NET = """
    import torch
    from torch import nn

    print("a model file that talks")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.head = nn.Linear(4, 2)

        def forward(self, words, mask=None):
            print("a forward that talks")
            x = self.embed(words)
            if mask is not None:
                x = x * mask.unsqueeze(-1)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3)

    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("no such thing")

    class Mismatch(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 4), nn.Linear(5, 6))
"""
PARAMETERS = 10 * 4 + 3 * (4 * 4 + 4) + (4 * 2 + 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shell's current folder, with the file net.py in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    yield tmp_path
    sys.modules.pop("net", None)


def shell(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "torchglass", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command fails with."""
    capsys.readouterr()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if "that talks" not in line]
    assert line.startswith("torchglass: ")
    return line.removeprefix("torchglass: ")


def test_a_summary_shows_modules_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net"]) == 0

    table = capsys.readouterr().out
    assert "Embedding" in table
    assert "head" in table
    assert str(PARAMETERS) in table


def test_stdout_has_only_json_even_if_user_code_prints() -> None:
    done = shell("summary", "net.py:Net", "--input", "2x7:long", "--json")

    assert json.loads(done.stdout)
    assert "a model file that talks" in done.stderr
    assert "a forward that talks" in done.stderr


def test_an_input_adds_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--input", "2x7:long"]) == 0

    assert "2×7×4" in capsys.readouterr().out


def test_an_input_may_name_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--input", "2x7:long", "--input", "mask=2x7"]) == 0

    assert "2×7×4" in capsys.readouterr().out


def test_a_fake_forward_gives_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["summary", "net.py:Net", "--input", "2x7:long", "--json"]

    assert main(words) == 0
    real = json.loads(capsys.readouterr().out)
    assert main([*words, "--fake"]) == 0
    fake = json.loads(capsys.readouterr().out)

    assert fake == real


def test_output_files_are_written_to_the_given_paths(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "net.py:Net", "--html", "net.html", "--csv", "net.csv"]) == 0

    captured = capsys.readouterr()
    assert "Module" in captured.out
    assert "wrote net.html" in captured.err
    assert (folder / "net.html").read_text(encoding="utf-8").lstrip().startswith("<!")
    with (folder / "net.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 7


def test_a_dash_means_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--csv", "-"]) == 0

    assert len(list(csv.DictReader(capsys.readouterr().out.splitlines()))) == 7


def test_depth_order_and_folding_are_chosen_by_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tree(*options: str) -> str:
        assert main(["tree", "net.py:Net", *options]) == 0
        return capsys.readouterr().out

    whole = tree()

    assert whole.index("embed") < whole.index("layers") < whole.index("head")
    assert "Linear(4→4)" in whole
    assert "Linear(4→4)" not in tree("--depth", "1")
    by_size = tree("--sort", "params")
    assert by_size.index("layers") < by_size.index("embed") < by_size.index("head")
    assert "3 × Linear (0–2)" in tree("--fold")


def test_a_checkpoint_needs_no_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"body.0.weight": torch.zeros(3, 2)}, folder / "weights.safetensors")

    assert main(["tree", "weights.safetensors"]) == 0

    assert "[6 params]" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_colored_in_a_pipe() -> None:
    assert "\x1b" not in shell("summary", "net.py:Net").stdout
    assert "\x1b" not in shell("--help").stdout


@pytest.mark.slow
def test_an_ascii_terminal_gets_replacement_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    assert "conv1: Conv2d(3?8, 3?3) [224 params]" in shell("tree", "net.py:Picture").stdout


def test_a_module_in_the_current_folder_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "net:Net"]) == 0

    assert "Embedding" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["summary", "tree", "explore", "view", "report", "demo", "completion"]
)
def test_each_command_explains_itself_by_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0

    text = capsys.readouterr().out
    assert f" torchglass {command} " in text
    # A line of the docstring with a wrong indent would print it as it is, and explain no option.
    assert "-----" not in text


def test_help_groups_commands_that_show_and_commands_that_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0

    text = capsys.readouterr().out
    places = [text.index(word) for word in ("Show a", " tree ", "Run a", " trace ", "started")]
    assert places == sorted(places)


def test_the_help_says_what_each_target_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--help"]) == 0
    assert main(["view", "--help"]) == 0

    text = capsys.readouterr().out
    assert re.search(r"--against.* Compare with this model", text)
    assert "OTHERS  More targets" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sumary", "net.py:Net"], 'Did you mean "summary"?'),
        (["summary"], "TARGET"),
        (["summary", "net.py:Net", "--depht", "2"], "Did you mean --depth?"),
        (["summary", "net.py:Net", "--sort", "size"], 'Choose from: "params", "bytes", "name"'),
        (["summary", "net.py"], "available: Net, Picture, Broken"),
        (["summary", "net.py:Nett"], "did you mean Net?"),
        (["summary", "absent.pt"], "there is no file absent.pt"),
        (["summary", "notes.txt"], "notes.txt is not a checkpoint"),
        (["summary", "net.py:Net", "--input", "2xA"], "--input '2xA' is not a shape"),
        (["summary", "empty.py"], "empty.py has no model: it has no nn.Module"),
        (["summary", "empty.py:Net"], "empty.py has no 'Net': it has no nn.Module"),
        (["summary", "net.py:Net", "--html", "net.py/x.html"], "net.py: Not a directory"),
        (["trace", "net.py:Net"], "pass one with --input 1x3x224x224"),
        (["view", "notes.txt", "--input", "1x3"], "notes.txt cannot run: it is a file"),
        (["report", "net.py:Net"], "--out"),
        (["profile", "net.py:Net", "--input", "2x5:long", "--csv"], "--csv requires an argument"),
        (
            ["inspect", "net.py:Net", "--input", "2x5:long", "--depth", "-1"],
            "depth must be 0",
        ),
        (["demo", "--steps", "0"], "Must be >= 1"),
    ],
)
def test_a_usage_error_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.txt").write_text("buy milk")
    Path("empty.py").write_text("x = 1")

    assert says in failure(capsys, *words)


def test_a_torchglass_warning_is_one_line(folder: Path) -> None:
    (folder / "junk.glass").write_text("no run at all")

    complaints = shell("tree", ".", code=2).stderr.splitlines()

    assert complaints[0].startswith("torchglass: left out: junk.glass is not a run file")
    assert all(line.startswith("torchglass: ") for line in complaints)


def test_an_exception_while_importing_is_one_line_with_its_location(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "faulty.py").write_text("import json\n\nmodel = json.loads('{')\n")

    line = failure(capsys, "summary", "faulty.py:model")

    assert line.startswith("JSONDecodeError: Expecting property name")
    assert " at faulty.py:3 " in line
    assert "--debug" in line


def test_a_syntax_error_is_one_line_with_its_location(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "unwritten.py").write_text("x = 1\nclass Net(\n")

    line = failure(capsys, "summary", "unwritten.py:Net")

    assert line.startswith("SyntaxError: ")
    assert "unwritten.py:2" in line


def test_an_exception_in_the_forward_is_one_line_with_its_location(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = failure(capsys, "summary", "net.py:Broken", "--input", "1x3")

    assert line.startswith("KeyError: 'no such thing' at net.py:")


def test_a_shape_mismatch_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(capsys, "summary", "net.py:Mismatch", "--input", "1x3")

    assert "shapes cannot be multiplied (1x4 and 5x6)" in line
    assert ".py" not in line


@pytest.mark.parametrize(
    "command", ["summary", "trace", "profile", "flops", "memory", "inspect", "report"]
)
def test_a_failing_forward_points_to_explain(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", "net.html"] if command == "report" else []

    line = failure(capsys, command, "net.py:Mismatch", "--input", "1x3", *out)

    assert "shapes cannot be multiplied (1x4 and 5x6)" in line
    assert "torchglass explain" in line
    assert "a bug in Torchglass" not in line


@pytest.mark.parametrize(
    "command",
    [
        "summary",
        pytest.param("flops", marks=pytest.mark.slow),
        pytest.param("memory", marks=pytest.mark.slow),
    ],
)
def test_a_failing_fake_forward_is_one_line(command: str) -> None:
    done = shell(command, "net.py:Mismatch", "--input", "1x3", "--fake", code=2)

    assert len([line for line in done.stderr.splitlines() if "talks" not in line]) == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Broken", "--input", "1x3", "--debug"]) == 2

    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_the_explorer_without_a_terminal_prints_a_summary_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["summary", "net.py:Net"]) == 0
    table = capsys.readouterr().out

    assert main(["explore", "net.py:Net"]) == 0

    printed = capsys.readouterr()
    assert printed.out == table
    assert "needs a terminal, so this is `torchglass summary net.py:Net`" in printed.err
    assert "`torchglass report net.py:Net --out page.html`" in printed.err


def test_a_report_is_one_file(folder: Path) -> None:
    assert main(["report", "net.py:Net", "--out", "net.html"]) == 0

    page = (folder / "net.html").read_text(encoding="utf-8")
    assert "embed" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_demo_command_leaves_a_run_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "here", "--steps", "3"]) == 0

    (run,) = (folder / "here").glob("*.glass")
    assert f"torchglass explore {run.relative_to(folder)}" in capsys.readouterr().out
    assert main(["tree", str(run)]) == 0
    assert "Sorter" in capsys.readouterr().out


@pytest.mark.parametrize("closed", [">&-", pytest.param("2>&-", marks=pytest.mark.slow)])
def test_a_closed_stdout_is_not_an_error(closed: str) -> None:
    command = f'"{sys.executable}" -m torchglass summary net.py:Picture {closed}'

    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert "bug" not in done.stderr


def test_a_pipe_closed_early_is_not_an_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m torchglass summary net.py:Net 2>err.txt | head -1; "
        "echo ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] in ("0", "141")
    assert "Error" not in Path("err.txt").read_text()


def test_ctrl_c_ends_a_command_quietly(folder: Path) -> None:
    (folder / "slow.py").write_text("import signal\nprint('waiting', flush=True)\nsignal.pause()")

    with subprocess.Popen(
        [sys.executable, "-m", "torchglass", "summary", "slow.py:model"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "waiting\n"

        waiting.send_signal(signal.SIGINT)
        _, complaints = waiting.communicate()

    assert waiting.returncode == 130
    assert complaints == ""


def test_ctrl_c_ends_the_server_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "torchglass", "view", "net.py:Net", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("http://localhost:")

        serving.send_signal(signal.SIGINT)
        _, complaints = serving.communicate()

    assert serving.returncode == 0
    assert "Traceback" not in complaints


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("torchglass su", {"summary"}),
        ("torchglass summary --s", {"--sort"}),
        ("torchglass summary net.py:Net --sort b", {"bytes"}),
        ("torchglass tree ne", {"net.py"}),
    ],
)
def test_bash_completion_works(typed: str, offered: set[str]) -> None:
    words = typed.split()
    script = shell("completion", "bash").stdout
    script += f"""
        COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE="{typed}"
        COMP_POINT=${{#COMP_LINE}}
        complete -p torchglass | grep -q -- '-F _torchglass '
        _torchglass torchglass {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """

    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )

    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_have_a_completion_script(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", name]) == 0

    script = capsys.readouterr().out
    assert "torchglass" in script
    assert "summary" in script


def test_the_trace_command_draws_and_saves_a_forward(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "net.py:Net", "--input", "2x5:long"]

    assert main([*words, "--draw", "net.svg", "--out", "pass.glass"]) == 0

    captured = capsys.readouterr()
    assert "Log of Net forward pass:" in captured.out
    assert "wrote net.svg" in captured.err
    assert Path("net.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert Path("pass.glass").exists()
    assert main([*words, "--op", "embedding"]) == 0
    assert "Layer embedding_1_1" in capsys.readouterr().out


def test_explaining_torch_modules_names_no_library_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "stack.py").write_text(
        "from torch import nn\n\ndef make():\n"
        "    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(8, 2))\n"
    )

    assert main(["explain", "stack.py:make", "--input", "3x8"]) == 0

    told = capsys.readouterr().out
    assert "use Linear(16, 2)" in told
    assert ".py" not in told


def test_a_failing_forward_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "net.py:Mismatch", "--input", "2x3"]) == 0

    story = capsys.readouterr().out
    assert "Tensors involved" in story
    assert "expects 5 features" in story


def test_explain_says_how_to_pass_missing_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "net.py:Net"]) == 0

    printed = capsys.readouterr()
    assert "missing 1 required positional argument: 'words'" in printed.out
    assert printed.err.splitlines()[-1] == ("torchglass: pass one with --input 1x3x224x224")


def test_a_profile_is_a_table_json_csv_or_a_trace_for_a_browser(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["profile", "net.py:Net", "--input", "2x5:long", "--warmup", "1", "--repeats", "2"]

    assert main([*words, "--trace", "run.json", "--ops"]) == 0
    assert "embed" in capsys.readouterr().out
    assert json.loads(Path("run.json").read_text(encoding="utf-8"))
    assert main([*words, "--json", "-"]) == 0
    assert "linear" in {op["op"] for op in json.loads(capsys.readouterr().out)["ops"]}
    assert main([*words, "--csv", "times.csv"]) == 0
    assert "embed" in capsys.readouterr().out
    with Path("times.csv").open(encoding="utf-8", newline="") as lines:
        paths = [line["path"] for line in csv.DictReader(lines)]
    assert paths[:2] == ["Net", "embed"]
    assert paths[-1] == "unattributed"


def test_a_training_checkpoint_lists_its_other_contents(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, folder / "train.pth")
    told = "Also in this file: optimizer (state of SGD with momentum, 2 tensors, 36 B), epoch=3"

    for verb in ("summary", "tree"):
        assert main([verb, "train.pth"]) == 0
        assert told in " ".join(capsys.readouterr().out.split())
    assert main(["summary", "train.pth", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["also_in_file"]

    assert [(part["name"], part["path"]) for part in parts] == [
        ("optimizer", "optimizer"),
        ("epoch", ""),
    ]


@pytest.mark.parametrize("command", ["summary", "profile", "inspect", "explain"])
@pytest.mark.parametrize("given", [["--input", "2x16"], ["--input=2x16"]])
def test_float_indices_get_a_dtype_hint(
    command: str, given: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "words.py").write_text(
        "from torch import nn\nmodel = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))\n"
    )

    main([command, "words.py:model", *given])

    assert "for indices use --input 2x16:long" in capsys.readouterr().err


def test_a_drawing_collapses_modules_at_a_depth(folder: Path) -> None:
    (folder / "deep.py").write_text(
        "from torch import nn\n"
        "model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))\n"
    )

    for name, options in (("whole", ()), ("closed", ("--depth", "1"))):
        main(["trace", "deep.py:model", "--input", "2x4", "--draw", f"{name}.svg", *options])

    assert 'id="relu_1_2"' in (folder / "whole.svg").read_text()
    assert 'id="relu_1_2"' not in (folder / "closed.svg").read_text()
