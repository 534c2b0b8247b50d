from __future__ import annotations


def names_of_other_meaning(data):
    class Own:
        def never(self, *_, **__):
            raise AssertionError("torch does not call this")

        set_epoch = shard = order = batches = gather = gather_layout = describe = fingerprint = never
        num_shards = weights = lengths = labels = generator = property(never)

    class Numbers(Own, data.Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, index):
            return index

    class Stream(Own, data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return iter(range(6) if info is None else range(info.id, 6, info.num_workers))

    class Backwards(Own, data.Sampler):
        def __iter__(self):
            return iter(range(6, -1, -1))

    class Pairs(Own, data.Sampler):
        def __iter__(self):
            return iter([[3, 1], [2]])

    class Part(Own, data.Subset):
        pass

    given = []
    for workers in (0, 2):
        for made in (
            {"dataset": Numbers(), "batch_size": 3},
            {"dataset": Stream(), "batch_size": 2},
            {"dataset": Numbers(), "sampler": Backwards()},
            {"dataset": Numbers(), "batch_sampler": Pairs()},
            {"dataset": Part(Numbers(), [4, 2])},
        ):
            loader = data.DataLoader(**made, num_workers=workers)
            given.append([list(loader), list(loader)])
    return given


def test_names_of_other_meaning_are_left_alone(same):
    same(names_of_other_meaning)


def curriculum_that_resumes(data):
    class Curriculum(data.Dataset):
        level = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.level

        def set_epoch(self, epoch):
            self.level = 10 * epoch

    class Staged(Curriculum):
        def set_epoch(self, epoch, stage, *, of):
            self.level = epoch + stage * of

    given = []
    for settings in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        dataset, staged = Curriculum(), Staged()
        loaders = [data.DataLoader(each, batch_size=4, **settings) for each in (dataset, staged)]
        for epoch in range(6, 9):
            dataset.set_epoch(epoch)
            staged.set_epoch(epoch, 2, of=100)
            given.append([list(loader) for loader in loaders])
    return given


def test_curriculum_that_resumes_is_equal(same):
    same(curriculum_that_resumes)


def distributed_sampler_of_a_script(data):
    from torch.utils.data import DistributedSampler

    given = []
    for calls in ([0, 1, 2], [6, 7], [5, 5, 0, 5], [7, None, None, 2, None]):
        sampler = DistributedSampler(range(12), num_replicas=2, rank=1)
        loader = data.DataLoader(range(12), sampler=sampler)
        for number in calls:
            if number is not None:
                sampler.set_epoch(number)
            given.append(list(loader))
    return given


def test_distributed_sampler_of_a_script_is_equal(same):
    same(distributed_sampler_of_a_script)


def distributed_sampler_that_is_forgotten(data):
    from torch.utils.data import DistributedSampler

    loader = data.DataLoader(range(12), sampler=DistributedSampler(range(12), num_replicas=2, rank=1))
    return [list(loader) for _ in range(3)]


def test_distributed_sampler_that_is_forgotten_differs(same):
    theirs, ours = same(
        distributed_sampler_that_is_forgotten,
        differs="a `DistributedSampler` whose `set_epoch` the script never calls",
    )
    assert theirs.result[0] == theirs.result[1] == ours.result[0] != ours.result[1]


def states_that_raise(data):
    class Stateful:
        def state_dict(self):
            raise RuntimeError("not now")

        def load_state_dict(self, state):
            raise RuntimeError("never")

    class Shuffled(Stateful, data.Sampler):
        def __iter__(self):
            return iter([2, 0, 1])

    class Stream(Stateful, data.IterableDataset):
        def __iter__(self):
            return iter([2, 0, 1])

    given = []
    for workers in (0, 1):
        given.append(list(data.DataLoader(range(3), sampler=Shuffled(), num_workers=workers)))
        given.append(list(data.DataLoader(Stream(), num_workers=workers)))
    return given


def test_states_that_raise_end_no_epoch(same):
    same(states_that_raise)
