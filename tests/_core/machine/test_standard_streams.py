"""A program that was started without its standard streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("closed", ["0", "1", "2", "0, 2", "0, 1, 2"])
def test_no_file_gets_the_number_of_a_standard_stream(closed: str, script: Callable[..., str]) -> None:
    script(f"""
        import os
        from stoker._core.machine import reserve as standard
        for number in [{closed}]:
            os.close(number)
        for _ in range(2):
            standard.occupy()
            assert os.open(os.devnull, os.O_RDONLY) > 2
        assert all(os.get_inheritable(number) for number in (0, 1, 2))  # whoever is started has them too
    """)


def test_standard_streams_that_are_there_stay(script: Callable[..., str]) -> None:
    told = script("""
        import os
        from stoker._core.machine import reserve as standard
        before = [os.fstat(number) for number in (0, 1, 2)], len(os.listdir("/proc/self/fd"))
        standard.occupy()
        print(before == ([os.fstat(number) for number in (0, 1, 2)], len(os.listdir("/proc/self/fd"))))
    """)
    assert told == "True"
