"""Where a watched training is shown while it goes on."""

from __future__ import annotations

import re
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.recorded import ROOT, RUN, put_step
from torchglass import TorchglassWarning, errors, watch
from torchglass.api import backends
from torchglass.store.readers import FileReader, MemoryStore


def test_a_page_is_served_during_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    served: list[backends.StandaloneBackend] = []
    begin = backends.StandaloneBackend.begin

    def remember(self: backends.StandaloneBackend, reader: object) -> None:
        served.append(self)
        begin(self, reader)  # type: ignore[arg-type]

    monkeypatch.setattr(backends.StandaloneBackend, "begin", remember)
    model = nn.Linear(4, 2)

    with watch(model, backend="standalone", run_dir=":memory:", standalone_port=0):
        model(torch.randn(3, 4)).sum().backward()
        # The token of the address becomes a cookie.
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(served[0].url) as answer:
            page = answer.read().decode()

    assert "<html" in page
    assert served[0].url in capsys.readouterr().err
    server = served[0]._server
    assert server is not None
    server.close()


def test_a_backend_that_cannot_start_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[FileReader] = []

    def fail(self: backends.StandaloneBackend, reader: FileReader) -> None:
        readers.append(reader)
        raise OSError("no port is free")

    monkeypatch.setattr(backends.StandaloneBackend, "begin", fail)
    call, threads = nn.Module.__call__, set(threading.enumerate())

    with pytest.raises(OSError, match="no port is free"):
        watch(nn.Linear(4, 2), backend="standalone", run_dir=tmp_path, verbose=False)

    with pytest.raises(errors.StoreError, match="closed"):
        readers[0].run()
    assert not list(tmp_path.iterdir())
    assert set(threading.enumerate()) <= threads
    assert nn.Module.__call__ is call


def test_a_failing_backend_is_a_warning_and_the_file_is_written(tmp_path: Path) -> None:
    class Broken(backends.Backend):
        def frame(self, frame: object, series: object) -> None:
            raise OSError("gone away")

    store = MemoryStore(RUN)
    shown = backends.BackendSink(store, [Broken()])

    with pytest.warns(TorchglassWarning, match="Broken stopped: OSError: gone away"):
        put_step(shown, 0)
    put_step(shown, 1)

    assert store.last_step() == 1


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("wandb", "wandb"),
        ("tensorboard", "torch.utils.tensorboard"),
        ("mlflow", "mlflow"),
        ("opentelemetry", "opentelemetry.exporter.otlp.proto.http"),
        ("ray", "ray"),
        ("mcp", "mcp"),
        ("lsp", "pygls"),
    ],
)
def test_a_missing_package_error_names_the_pip_command(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    loaded = [one for one in sys.modules if one == package or one.startswith(f"{package}.")]
    for one in (package, *loaded):
        # What Python finds if it is not installed.
        monkeypatch.setitem(sys.modules, one, None)
    monkeypatch.delitem(sys.modules, f"torchglass.integrations.{name}", raising=False)

    with pytest.raises(errors.ViewError, match=re.escape(f"pip install 'torchglass[{name}]'")):
        backends.integration(name, "this")

    assert f"\n{name} = [" in settings
