from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from torchglass.capture.tensor.files import (
    SavedTensors,
    Tensors,
    pack_tensors,
    unpack_tensors,
    write_tensors,
)
from torchglass.errors import StoreError, TorchglassWarning
from torchglass.records.trace import OpId

pytestmark = [
    # torch warns of what it calls beta or deprecated, once for each process.
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]

Y = torch.arange(24.0).reshape(4, 6) - 10

DENSE = {
    "plain": Y,
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 3),
    "transposed": Y.t(),
    "expanded": torch.ones(1).expand(5, 5),
    "bool": Y > 0,
    "bfloat16": Y.bfloat16(),
    "complex": torch.complex(Y, -Y),
    "conjugate": torch.complex(Y, -Y).t().conj(),
    "double complex": torch.complex(Y, -Y).to(torch.complex128),
    "negated": torch.complex(Y, -Y).conj().imag,
    "with gradient": (Y.clone().requires_grad_() * 2),
}


def key(op: int) -> tuple[OpId, int]:
    return OpId(op), 0


def written(path: Path, tensors: Tensors) -> SavedTensors:
    write_tensors(path, {"tensors": tensors})
    return SavedTensors(path, "tensors")


def through_bytes(path: Path, tensors: Tensors) -> Tensors:
    return unpack_tensors(pack_tensors({"tensors": tensors}), "tensors")


@pytest.mark.parametrize("way", [written, through_bytes])
@pytest.mark.parametrize("name", DENSE)
def test_a_dense_tensor_round_trips(
    way: Callable[[Path, Tensors], Tensors], name: str, tmp_path: Path
) -> None:
    tensor = DENSE[name]

    back = way(tmp_path / "x.safetensors", {key(3): tensor})[key(3)]

    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
    assert not back.requires_grad


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_a_sparse_tensor_stays_sparse(layout: torch.layout, tmp_path: Path) -> None:
    tensor = Y.relu().to_sparse(layout=layout)

    back = written(tmp_path / "x.safetensors", {key(0): tensor})[key(0)]

    assert back.layout is layout
    assert torch.equal(back.to_dense(), Y.relu())


def test_a_nested_tensor_keeps_its_parts(tmp_path: Path) -> None:
    tensor = torch.nested.nested_tensor([Y[:2], Y[:3]], layout=torch.jagged)

    back = written(tmp_path / "x.safetensors", {key(0): tensor})[key(0)]

    assert back.is_nested
    assert [part.shape for part in back.unbind()] == [(2, 6), (3, 6)]


def test_a_quantized_tensor_stays_quantized(tmp_path: Path) -> None:
    tensor = torch.quantize_per_tensor(Y, 0.5, 3, torch.quint8)

    back = written(tmp_path / "x.safetensors", {key(0): tensor})[key(0)]

    assert back.is_quantized
    assert torch.equal(back.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("fake", [True, False])
def test_a_tensor_without_data_keeps_its_shape(fake: bool, tmp_path: Path) -> None:
    with FakeTensorMode() if fake else torch.device("meta"):
        tensor = torch.empty(3, 4, dtype=torch.float16)

    back = written(tmp_path / "x.safetensors", {key(0): tensor})[key(0)]

    assert (back.device.type, back.shape, back.dtype) == ("meta", (3, 4), torch.float16)


def test_a_shared_storage_is_written_once_for_all_its_views(tmp_path: Path) -> None:
    big = torch.randn(100, 100)
    views = {key(0): big, key(1): big, key(2): big.view(-1), key(3): big.t(), key(4): big.t()}

    back = written(tmp_path / "x.safetensors", views)

    # `big`, and its transpose laid out anew.
    assert (tmp_path / "x.safetensors").stat().st_size < 2.1 * big.nbytes
    assert all(torch.equal(back[each], tensor) for each, tensor in views.items())


def test_overlapping_slices_of_one_storage_do_not_mix(tmp_path: Path) -> None:
    parts = {key(0): Y[:2], key(1): Y[1:3], key(2): Y, key(3): Y.view(-1)[:6]}

    back = written(tmp_path / "x.safetensors", parts)

    assert all(torch.equal(back[each], tensor) for each, tensor in parts.items())


def test_temporary_copies_that_reuse_memory_do_not_mix(tmp_path: Path) -> None:
    conjugates = {
        key(number): torch.full((64, 32), complex(number, number)).t().conj()
        for number in range(20)
    }

    back = written(tmp_path / "x.safetensors", conjugates)

    assert all(torch.equal(back[each], tensor) for each, tensor in conjugates.items())


def test_groups_are_kept_separate(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"

    write_tensors(path, {"tensors": {key(0): Y}, "gradients": {key(0): Y + 1}})

    assert torch.equal(SavedTensors(path, "tensors")[key(0)], Y)
    assert torch.equal(SavedTensors(path, "gradients")[key(0)], Y + 1)


def test_a_tensor_is_read_once_while_it_is_used(tmp_path: Path) -> None:
    saved = written(tmp_path / "x.safetensors", {key(0): Y})

    held = saved[key(0)]

    assert saved[key(0)] is held
    assert key(0) in saved
    assert key(1) not in saved
    assert list(saved) == [key(0)]


def test_an_unsupported_tensor_class_is_skipped_with_a_warning(
    tmp_path: Path,
) -> None:
    pair = TwoTensor(Y, Y)  # type: ignore[no-untyped-call]

    with pytest.warns(TorchglassWarning, match="1 tensors cannot be saved"):
        saved = written(tmp_path / "x.safetensors", {key(0): pair, key(1): Y})

    assert list(saved) == [key(1)]


def test_a_missing_tensor_file_is_empty_and_a_corrupt_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert dict(SavedTensors(path, "tensors")) == {}

    path.write_bytes(pickle.dumps("not tensors"))
    with pytest.raises(StoreError, match="cannot read the tensors in"):
        dict(SavedTensors(path, "tensors"))


def test_a_tensor_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "any").touch()

    written(tmp_path / "x.safetensors", {key(0): Y})

    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "any").stat().st_mode
