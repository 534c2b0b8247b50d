"""Workers are children of `multiprocessing` in every respect."""

from __future__ import annotations


def manager_list_that_the_trainer_used(data):
    import multiprocessing

    with multiprocessing.Manager() as manager:
        shared = manager.list(range(200))

        class Shared(data.Dataset):
            def __len__(self):
                return len(shared)

            def __getitem__(self, index):
                return shared[index]

        return [batch.tolist() for batch in data.DataLoader(Shared(), batch_size=10, num_workers=2)]


def test_manager_list_gives_each_worker_its_own_answers(same):
    same(manager_list_that_the_trainer_used)


def finalizer_in_a_worker(data):
    import os
    from multiprocessing import util

    class Registers(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index % 2 == 0:
                util.Finalize(self, open, args=(f"finalized {index}", "w"), exitpriority=1)
            return index

    batches = [batch.tolist() for batch in data.DataLoader(Registers(), batch_size=2, num_workers=2)]
    return batches, sorted(name for name in os.listdir() if name.startswith("finalized"))


def test_finalizers_run_at_a_workers_end(same):
    same(finalizer_in_a_worker)


def queue_that_workers_fill(data):
    import multiprocessing

    queue = multiprocessing.Queue()

    class Reports(data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            for part in range(50):
                queue.put((index, part))
            return index

    batches = [batch.tolist() for batch in data.DataLoader(Reports(), batch_size=2, num_workers=2)]
    records = sorted(queue.get(timeout=10) for _ in range(8 * 50))
    return batches, records


def test_queue_that_workers_fill_is_whole(same):
    same(queue_that_workers_fill)


def hook_after_a_fork(data):
    from multiprocessing import util

    class Counted(data.Dataset):
        calls = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.calls

    dataset = Counted()
    util.register_after_fork(dataset, lambda it: setattr(it, "calls", it.calls + 1))
    return [batch.tolist() for batch in data.DataLoader(dataset, batch_size=2, num_workers=2)]


def test_hooks_after_a_fork_run_in_each_worker(same):
    same(hook_after_a_fork)
