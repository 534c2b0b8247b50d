"""What is marked is never freed, so all of this runs in programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from stoker._engine.fork.heap_sharing import mark_heap, mark_reachable, supported, worth_it

VERSIONS = ((3, 12), (3, 13))
RELEASED = sys.implementation.name == "cpython" and getattr(sys, "abiflags", "none") == ""
needs_marks = pytest.mark.skipif(
    sys.version_info[:2] not in VERSIONS or not RELEASED, reason="only CPython 3.12 and 3.13 as released can mark"
)

PRELUDE = """
import ctypes, gc, os, pickle, sys
import numpy as np
from stoker._engine.fork.heap_sharing import mark_heap, mark_reachable, supported, worth_it

MARK = 0xFFFFFFFF

def marked(*objects):
    return all(sys.getrefcount(o) == MARK for o in objects)

def unmarked(*objects):
    return all(sys.getrefcount(o) < 1 << 31 for o in objects)
"""


def run(lines: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", PRELUDE + dedent(lines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.version_info[:2] in VERSIONS and RELEASED, reason="this Python can mark")
def test_heap_of_other_pythons_is_left_alone():
    rows = [("a" * i, i) for i in range(1000, 1010)]
    assert not supported() and not worth_it()
    assert mark_heap() is None and mark_reachable(rows) is None
    assert sys.getrefcount(rows[0]) < 10


@needs_marks
def test_every_kind_of_object_is_marked():
    run(
        """
        import collections

        class Plain:
            def __init__(self, **fields):
                vars(self).update(fields)

        class Slots:
            __slots__ = ("inner",)

        class SubArray(np.ndarray):
            pass

        made = []  # addresses, so that each text is held by its container alone
        def new():
            it = f"text {len(made)}"
            made.append(id(it))
            return it

        slots = Slots()
        slots.inner = new()
        table = np.zeros(2, [("a", "i4"), ("b", "O"), ("c", [("d", "O", (2,))])])
        table["b"][0], table["c"]["d"][1, 1] = new(), new()
        nested = np.empty((2, 2), object)
        nested[1, 0] = new()
        sub = np.empty(3, object).view(SubArray)
        sub[1] = new()
        scalar = np.empty((), object)
        scalar[()] = new()
        owner = Plain(text=new())
        def closure(inner=new()):
            hidden = new()
            return lambda: (hidden, inner)
        root = [
            (new(), 10**40), {new(): new()}, collections.defaultdict(int, {new(): 1}), {new()},
            frozenset([new()]), Plain(a=new(), b=[new()]), slots, closure(),
            table, nested[:, :1], sub[::2], sub, scalar, 1.5 + len(made), bytearray(5), np.arange(5)[1:],
        ]

        done = mark_heap()
        assert done.objects > 10_000 and 0 < done.seconds < 30
        assert marked(root, *root, root[0][1], root[-1].base)
        assert len(made) == 17 and all(ctypes.c_uint32.from_address(at).value == MARK for at in made)
        assert marked(Plain, Slots, closure, np, sys, vars(sys), root[7].__closure__[0])
        """
    )


@needs_marks
def test_the_frozen_are_marked_too_and_nothing_twice():
    run(
        """
        def program():
            rows = [[i] for i in range(1000)]  # nothing but a frame holds it, and frames are not looked into
            gc.freeze()
            first = mark_heap()
            assert marked(rows, *rows) and gc.get_freeze_count() > 1000 and gc.isenabled()
            second = mark_heap()
            assert second.objects < first.objects / 20

        program()
        """
    )


@needs_marks
def test_small_integers_none_and_frames_stay_as_they_are():
    run(
        """
        def generate():
            yield sys._getframe()

        running = generate()
        frame = next(running)
        try:
            1 / 0
        except ZeroDivisionError as error:
            caught = error
        held = [frame, running, sys._getframe(), caught]
        before = [sys.getrefcount(o) for o in (None, 5, True, (), "")]
        mark_heap()
        assert unmarked(frame, running, sys._getframe(), caught.__traceback__.tb_frame)
        assert marked(held, caught, caught.__traceback__)
        assert before == [sys.getrefcount(o) for o in (None, 5, True, (), "")]
        assert list(running) == []
        """
    )


@needs_marks
def test_a_marked_program_goes_on_as_before():
    run(
        """
        import asyncio, collections, copy, functools, itertools, json, random, re, threading, weakref

        rows = [[f"row {i}", i] for i in range(2000)]
        words = {f"word {i}": (i, str(i) * 3) for i in range(2000)}
        array = np.array([f"x{i}" for i in range(100)], dtype=object)
        pairs, counts = zip("abc" * 50, range(150)), collections.Counter("abcabc")
        interned = [sys.intern("interned" + str(i)) for i in range(100)]
        alive = weakref.WeakSet()
        class Node:
            def __init__(self, next):
                self.next = next
                alive.add(self)
        chain = functools.reduce(lambda node, _: Node(node), range(500), None)
        @functools.lru_cache(maxsize=10)
        def cached(x):
            return [x]
        cached(1)
        saved = pickle.dumps((rows, words, array))

        mark_heap()

        assert pickle.dumps((rows, words, array)) == saved
        again = pickle.loads(saved)
        assert again[:2] == (rows, words) and (again[2] == array).all()
        random.Random(0).shuffle(rows)
        rows.sort(key=lambda row: row[1])
        assert rows == again[0]
        for row in rows[:1000]:
            row[0] += "!" * 5
            row.append(row)
            del row[0]
        del rows[:500]
        for word in list(words)[:1000]:
            words.pop(word)
        words.update(fresh=[1])
        words.clear()
        assert sum(map(len, array + "y")) == 390
        array[:50] = None
        assert len(list(pairs)) == 150 and counts + counts == collections.Counter("abcabc" * 2)
        assert all(sys.intern(text + "") is text for text in interned)
        sys.intern("".join(["new", " and ", "interned"]))
        assert cached(1) is cached(1) and cached(2) == [2]
        for _ in range(3):
            try:
                json.loads(copy.deepcopy("{"))
            except ValueError as error:
                kept = error
        assert "Expecting" in str(kept)
        Node.extra = 5
        class Later(Node):
            pass
        later = Later(chain)
        gc.collect()
        assert len(alive) == 501
        del later
        chain = None
        gc.collect()
        assert len(alive) == 500, "what is marked stays, what is new is freed"
        cycle = Later(None)
        cycle.next = cycle
        del cycle
        gc.collect()
        assert len(alive) == 500
        seen = []
        thread = threading.Thread(target=lambda: seen.append(asyncio.run(asyncio.sleep(0, 7))))
        thread.start()
        thread.join()
        assert seen == [7] and re.fullmatch(r"(a|b)+", "abab")
        assert sys.getrefcount(np) == MARK and eval("[x for x in range(3)]") == [0, 1, 2]
        """
    )


@needs_marks
def test_random_operations_give_what_they_give_unmarked():
    out = run(
        """
        import random

        def play(mark):
            draw = random.Random(7)
            things = [[], {}, (), "s", 2**70, b"bytes", 1.5]
            for step in range(4000):
                if mark and step % 1000 == 500:
                    mark_heap()
                a, b = draw.choice(things), draw.choice(things)
                kind = draw.randrange(8)
                if kind == 0 and isinstance(a, list):
                    a.append(len(things))
                elif kind == 1 and isinstance(a, dict):
                    a[str(step)] = repr(b)[:20]
                elif kind == 2:
                    things.append((len(repr(a)), repr(b)[:30]))
                elif kind == 3:
                    things.append([repr(a)[:10], step])
                elif kind == 4:
                    things.append(pickle.loads(pickle.dumps(a)))
                elif kind == 5 and len(things) > 20:
                    del things[draw.randrange(len(things))]
                elif kind == 6:
                    things.sort(key=repr)
                elif kind == 7:
                    try:
                        things.append(a + b)
                    except TypeError as error:
                        things.append(str(error))
                del things[:-60]
            return repr(things)

        print(play(mark=False) == play(mark=True))
        """
    )
    assert out == "True"


@needs_marks
def test_forked_readers_copy_nothing():
    out = run(
        """
        def private():
            with open("/proc/self/smaps_rollup") as file:
                return sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

        rows = [(f"/data/img_{i:08d}.jpg", i) for i in range(200_000)]

        def growth_of_a_reader():
            hear, say = os.pipe()
            if not os.fork():
                gc.freeze()
                before = private()
                assert sum(label + len(path) for path, label in rows) > 0
                os.write(say, b"%d" % (private() - before))
                os._exit(0)
            os.wait()
            return int(os.read(hear, 20))

        plain = growth_of_a_reader()
        mark_heap()
        print(plain, growth_of_a_reader())
        """
    )
    plain, marked = map(int, out.split())
    assert plain > 15_000 and marked < 1000  # kB


@needs_marks
def test_a_pool_of_forked_workers_runs_on_a_marked_heap():
    run(
        """
        import multiprocessing, warnings

        if __name__ == "__main__":
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads
            mark_heap()
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(str, range(100)) == [str(i) for i in range(100)]
        """
    )


@needs_marks
def test_reachable_leaves_the_rest_alone():
    run(
        """
        import logging

        class Dataset:
            shared = ["of the class"]
            def __init__(self):
                table = {f"key {i}": [i] for i in range(10)}
                self.look = lambda key, default=[table]: table[key]
                self.rows = [(f"r{i}", i) for i in range(200_000)]
                self.module, self.of, self.log = logging, str.upper, logging.getLogger
                self.me = self
                self.chain = None
                for _ in range(2000):
                    self.chain = (self.chain, "".join(["link"]))

        dataset, other = Dataset(), [str(i) + "other" for i in range(10)]
        done = mark_reachable(dataset)
        assert 600_000 < done.objects < 610_000
        assert marked(dataset, dataset.rows, *dataset.rows[::1000], dataset.rows[77][0], dataset.chain[0][0][1])
        assert marked(dataset.look.__closure__[0].cell_contents, dataset.look.__defaults__[0], dataset.look("key 5"))
        assert unmarked(Dataset, Dataset.shared, logging, vars(logging), globals(), other, *other)
        assert mark_reachable(dataset).objects == 0
        gc.collect()
        assert dataset.look("key 3") == [3] and sorted(dataset.rows)[0] == ("r0", 0)
        """
    )


@needs_marks
def test_reachable_while_other_threads_run():
    run(
        """
        import threading

        rows = [(f"r{i}", [i]) for i in range(300_000)]
        stop, errors = threading.Event(), []
        def read():
            while not stop.is_set():
                for text, number in rows[:5000]:
                    if text != f"r{number[0]}":
                        errors.append(text)
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        mark_reachable(rows)
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors and marked(rows)
        del rows
        gc.collect()
        """
    )


@needs_marks
def test_worth_it_asks_for_a_large_heap():
    run(
        """
        assert supported() and not worth_it()
        rows = [(str(i), [i]) for i in range(400_000)]
        assert worth_it()
        mark_reachable(rows)
        assert not worth_it(), "what is frozen is shared already"
        """
    )


@needs_marks
@pytest.mark.parametrize(
    "difference",
    [
        "sys.version_info = (3, 14, 0)",
        "sys.abiflags = 't'",
        "del sys.abiflags",
        "import types; sys.implementation = types.SimpleNamespace(name='pypy')",
        "sys.getrefcount = lambda o: 7",
    ],
)
def test_a_layout_that_is_not_known_is_left_alone(difference):
    run(
        f"""
        real = sys.getrefcount
        {difference}
        rows = [["text"]]
        assert not supported() and mark_heap() is None and mark_reachable(rows) is None and not worth_it()
        assert real(rows) < 10
        """
    )
