"""The fixture that every other test relies on sees each kind of residue, and nothing where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

LEAKS = {
    "process": "subprocess.Popen(['sleep', '1'])",
    "zombie": "os.waitid(os.P_PID, os.fork() or os._exit(0), os.WEXITED | os.WNOWAIT)",
    "orphan": "subprocess.run(['sh', '-c', 'sleep 1 & exit'], stdout=subprocess.DEVNULL)",
    "orphan_of_another_session": "subprocess.run(['sh', '-c', 'sleep 1 & exit'], start_new_session=True)",
    "thread": "threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
    "descriptor": "kept.append(os.dup(0))",
    "mapping": "fd = os.memfd_create('stoker'); os.truncate(fd, 4096); kept.append(mmap.mmap(fd, 4096)); os.close(fd)",
}
EXPECTED = dict.fromkeys(LEAKS, "process") | {name: name for name in ("thread", "descriptor", "mapping")}

PRELUDE = """
import mmap, os, subprocess, threading, time, pytest
kept = []
def test_nothing():
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
@pytest.mark.leaves_behind("shown here")
def test_exempt():
    kept.append(os.dup(0))
@pytest.mark.leaves_behind("")
def test_exempt_without_a_reason():
    pass
class Cycle:
    def __init__(self):
        self.me, self.fd = self, os.dup(0)
    def __del__(self):
        os.close(self.fd)
def test_garbage():
    Cycle()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the fixture reads /proc")
def test_each_kind_of_residue_is_seen(tmp_path: Path) -> None:
    text = CONFTEST.read_text().replace("DEADLINE = 2.0", "DEADLINE = 0.1")
    (tmp_path / "conftest.py").write_text(text.replace('pytest_plugins = ["tests.tiers"]\n', ""))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = leaves_behind\n")
    body = PRELUDE + "".join(f"def test_{name}():\n    {leak}\n" for name, leak in LEAKS.items())
    (tmp_path / "test_leaks.py").write_text(body)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rEf", str(tmp_path)]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    reported = {line.split("::test_")[1].split(" ")[0]: line for line in output.splitlines() if "::test_" in line}
    assert set(reported) == {*LEAKS, "exempt_without_a_reason"}, output
    for name, kind in EXPECTED.items():
        assert f"\n  {kind} " in output.split(f"of test_{name} _")[1].split("\n_____")[0], output
