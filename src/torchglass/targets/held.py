"""Records in memory, and what other verbs gave back, as readers that views look through."""

from __future__ import annotations

import time

from torchglass.analyse.measuring import measures
from torchglass.records.documents import Document
from torchglass.records.flow import Reader
from torchglass.records.model import Model
from torchglass.records.run import Run


def hold(model: Model, *documents: Document) -> Reader:
    """A model and what is known of it, as a run that is over: a view need not wait for more."""
    from torchglass.store.memory import MemoryStore

    store = MemoryStore(Run(name=model.name, created_ns=time.time_ns()))
    store.put_model(model)
    for document in documents:
        store.put_document(document)
    store.close()
    return store


def reader_of_result(target: object) -> Reader | None:
    """A reader of what another verb gave back; None for anything else."""
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile
    from torchglass.results.run import SavedRun
    from torchglass.results.summary import Summary
    from torchglass.results.trace import Trace

    if isinstance(target, SavedRun):
        return target.reader
    if isinstance(target, Summary):
        return hold(target.model)
    if isinstance(target, Trace):
        return hold(target.model, target.record)
    if isinstance(target, Memory):
        return hold(target.model, target.footprint)
    if isinstance(target, Profile):
        return hold(target.model, measures(target.rows, {}, {}, target.timing.notes))
    return None
