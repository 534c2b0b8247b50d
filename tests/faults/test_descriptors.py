"""One descriptor for all batches: a small limit on descriptors is enough for any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_many_batches_are_held_with_a_hundred_descriptors(start: Any, birth: str) -> None:
    program = start(
        birth,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        kept = list(loader(Data(), num_workers=4))
        assert len(kept) == 500
        assert all(batch[1, -1] == 2 * place + 1 for place, batch in enumerate(kept))
        """,
    )
    assert program.end() == (0, "")


def test_failed_start_for_lack_of_descriptors_leaks_none(start: Any, birth: str) -> None:
    """Whichever of them is the first that cannot be had."""
    program = start(
        birth,
        """
        import resource
        import stoker
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        failed = 0
        for more in range(100):
            before = sorted(os.listdir("/proc/self/fd"))
            free = os.open(os.devnull, os.O_RDONLY)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, limits[1]))
            try:
                batches = iter(loader(Data()))
                next(batches)
                batches.close()
                break
            except (OSError, RuntimeError) as error:
                assert isinstance(error, stoker.StokerError) and "`ulimit -n`" in str(error), repr(error)
                failed += 1
            finally:
                batches = error = None
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert sorted(os.listdir("/proc/self/fd")) == before, more
        assert 3 < failed < 99
        """,
    )
    assert program.end() == (0, "")


def test_a_thousand_descriptors_in_the_trainer(start: Any) -> None:
    """Descriptors beyond those that `select` can tell apart."""
    program = start(
        "fork",
        """
        import resource
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 3000), limit))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
        class Fails(Data):
            def __getitem__(self, index):
                raise ValueError("x" * 1_000_000)  # an answer beyond what a socket takes at once
        it = iter(loader(Fails(), batch_size=500))
        for _ in range(2):
            try:
                next(it)
            except ValueError as error:
                assert "x" * 1_000_000 in str(error)
            else:
                raise AssertionError
        assert next(it, None) is None
        """,
    )
    assert program.end() == (0, "")


def test_a_process_without_mappings_left(start: Any) -> None:
    """Who keeps more batches than the kernel allows mappings gets copies."""
    program = start(
        "fork",
        """
        from stoker._engine.transport import reader
        class Scarce(reader.Mapping):
            left = 10
            def __init__(self, *arguments):
                if Scarce.left == 0:
                    raise OSError("no more")
                Scarce.left -= 1
                super().__init__(*arguments)
        reader.Mapping = Scarce
        kept = list(loader(Data()))
        assert all(batch[1, -1] == 2 * place + 1 for place, batch in enumerate(kept))
        assert Scarce.left == 0
        """,
    )
    assert program.end() == (0, "")


def test_a_program_without_standard_streams(start: Any, birth: str, tmp_path: Path) -> None:
    """What C code prints is in no batch then, and nothing of ours is the standard input that workers do not have."""
    program = start(
        birth,
        """
        class Prints(Data):
            def __getitem__(self, index):
                os.write(2, b"Corrupt JPEG data: premature end of data segment\\n" * 20)
                return super().__getitem__(index)
        for place, batch in enumerate(loader(Prints(), batch_size=50)):
            assert (batch == np.arange(50 * place, 50 * place + 50)[:, None]).all(), place
        Path(sys.argv[0] + ".done").touch()
        """,
        before=["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"],
    )
    assert program.end() == (0, "")
    assert (tmp_path / "program.py.done").exists()


@pytest.mark.parametrize("closes", ["before", "itself"])
def test_user_file_with_descriptor_0_stays_open(start: Any, closes: str) -> None:
    program = start(
        "fork",
        f"""
        if {closes == "itself"}:
            os.close(0)
        class Read(Data):
            file = os.open(sys.argv[0], os.O_RDONLY)
            def __getitem__(self, index):
                return np.frombuffer(os.pread(self.file, 100, 0), np.uint8)
        assert Read.file == 0
        assert (next(iter(loader(Read()))) == Read()[0]).all()
        """,
        before=["sh", "-c", 'exec "$@" 0<&-', "sh"] if closes == "before" else [],
    )
    assert program.end() == (0, "")
