"""Attributes of a loader's subclass are its own, whatever names Stoker's options have."""

from __future__ import annotations


def subclass_with_names_of_its_own(data):
    class Template(data.DataLoader):
        def __init__(self, dataset, **arguments):
            self.output = []
            super().__init__(dataset, **arguments)
            self.seed, self.rank, self.distributed, self.shard = 5, "rank", True, "shard"
            self.on_error, self.on_event, self.seeding = print, [], None

        def report(self):
            return len(self.output)

    loaders = [Template(list(range(10)), batch_size=4, num_workers=workers) for workers in (0, 2)]
    batches = [[batch.tolist() for batch in loader] for loader in loaders]
    return batches, [(it.seed, it.rank, it.distributed, it.shard, it.on_event, it.report()) for it in loaders]


def test_subclass_keeps_names_of_its_own(same):
    same(subclass_with_names_of_its_own)
