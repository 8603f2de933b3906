"""What is known of storages while they live."""

from __future__ import annotations

import torch

from torchglass.capture.measure.memory_recorder import StorageMap, plain_tensors


def test_a_storage_is_tracked_until_its_last_view_is_freed() -> None:
    gone: list[str] = []
    living: StorageMap[str] = StorageMap(gone.append)
    tensor = torch.ones(4)
    view = tensor[2:]

    living.know(tensor.untyped_storage(), "ones")
    del tensor
    assert living.find(view.untyped_storage()) == "ones"
    assert gone == []
    del view

    assert gone == ["ones"]
    assert list(living.pairs()) == []


def test_a_reassigned_storage_is_reported_once_when_freed() -> None:
    gone: list[str] = []
    living: StorageMap[str] = StorageMap(gone.append)
    tensor = torch.ones(4)

    living.know(tensor.untyped_storage(), "before")
    living.know(tensor.untyped_storage(), "after")
    del tensor

    assert gone == ["after"]


def test_a_forgotten_storage_is_not_reported() -> None:
    gone: list[str] = []
    living: StorageMap[str] = StorageMap(gone.append)
    one, other = torch.ones(4), torch.ones(4)
    living.know(one.untyped_storage(), "one")
    living.know(other.untyped_storage(), "other")

    assert living.forget(one.untyped_storage()) == "one"
    assert living.forget(one.untyped_storage()) is None
    living.clear()
    del one, other

    assert gone == []


def test_a_sparse_tensor_consists_of_its_indices_and_values() -> None:
    tensor = torch.eye(3).to_sparse()

    parts = [part.shape for part in plain_tensors(tensor)]

    assert parts == [(2, 3), (3,)]
