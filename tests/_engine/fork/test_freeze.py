from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

import stoker

CAN = sys.implementation.name == "cpython" and sys.version_info[:2] in ((3, 12), (3, 13)) and not sys.abiflags


def run(lines: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", dedent(lines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(CAN, reason="this Python can make objects immortal")
def test_freeze_on_other_pythons_warns_with_advice():
    rows = [("a", 1)]
    with pytest.warns(stoker.StokerWarning, match=r"stoker\.columns") as caught:
        assert stoker.freeze(rows) is rows
    assert caught[0].filename == __file__


@pytest.mark.skipif(not CAN, reason="only CPython 3.12 and 3.13 as released can make objects immortal")
class TestFreeze:
    def test_freeze_returns_the_same_changeable_object(self):
        run(
            """
            import sys, stoker

            class Dataset:
                def __init__(self):
                    self.rows = [(f"{i}.jpg", i) for i in range(1000)]

            dataset = Dataset()
            assert stoker.freeze(dataset) is dataset
            assert sys.getrefcount(dataset.rows[5][0]) == 0xFFFFFFFF and sys.getrefcount(Dataset) < 100
            dataset.rows.append(("new.jpg", 1000))
            dataset.rows.sort(reverse=True)
            del dataset.rows[:500], dataset
            """
        )

    def test_garbage_collection_does_not_write_to_a_frozen_object(self):
        assert (
            run(
                """
            import gc, stoker

            def private():
                with open("/proc/self/smaps_rollup") as file:
                    return sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

            import os
            rows = stoker.freeze([[str(i), i] for i in range(200_000)])
            if not os.fork():
                before = private()
                gc.collect()
                assert sum(number + len(text) for text, number in rows)
                print("less" if private() - before < 10_000 else private() - before, flush=True)
                os._exit(0)
            os.wait()
            """
            )
            == "less"
        )

    def test_a_collector_that_is_off_stays_off(self):
        run(
            """
            import gc, stoker

            gc.disable()
            stoker.freeze([[1]])
            assert not gc.isenabled()
            """
        )
