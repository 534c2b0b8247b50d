"""A stream that is left before its end is closed then, as torch closes it: its `finally` and `with` run, and what it
has open does not wait for the garbage collector.
"""

from __future__ import annotations


def left_streams(data):
    import gc
    import os
    import tempfile

    def stream_of(folder, asks):
        class Unpacked(data.IterableDataset):
            def __iter__(self):
                if asks:
                    data.get_worker_info()
                with tempfile.TemporaryDirectory(dir=folder):
                    yield from range(50)

        return Unpacked

    def left_by(loop, asks, **options):
        with tempfile.TemporaryDirectory() as folder:
            dataset = stream_of(folder, asks)()
            loop(data.DataLoader(dataset, batch_size=2, **options))
            return len(os.listdir(folder))

    def leaves(loader):
        for _ in loader:
            break

    def takes_one(loader):
        next(iter(loader))

    def raises(loader):
        try:
            for _ in loader:
                raise KeyError
        except KeyError:
            pass

    gc.disable()
    return [
        *[left_by(loop, asks) for loop in (leaves, takes_one, raises) for asks in (True, False)],
        *[left_by(leaves, asks, num_workers=2) for asks in (True, False)],
        left_by(leaves, True, num_workers=1, persistent_workers=True),
    ]


def test_a_stream_that_is_left_is_closed(same):
    theirs, _ = same(left_streams, timeout=60)
    assert theirs.result == [0] * 9


def messages_of_a_queue(data):
    import multiprocessing
    import warnings

    class Messages(data.IterableDataset):
        def __init__(self, queue):
            self.queue = queue

        def __iter__(self):
            return iter(self.queue.get, None)

    warnings.simplefilter("ignore")
    queue = multiprocessing.get_context("fork").SimpleQueue()
    for message in [*range(48), None, None]:
        queue.put(message)
    loader = data.DataLoader(Messages(queue), batch_size=4, num_workers=2)
    return sorted(int(message) for batch in loader for message in batch)


def test_a_queue_that_workers_share_loses_no_message(same):
    theirs, _ = same(messages_of_a_queue)
    assert theirs.result == list(range(48))
