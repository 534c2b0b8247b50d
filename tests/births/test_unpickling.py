"""Clean workers unpickle the dataset and the functions themselves, as torch's do: what that opens is theirs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CLEAN = ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)]

pytestmark = pytest.mark.parametrize("birth", CLEAN)

FILE = """
import os
from pathlib import Path
import numpy as np
from stoker import DataLoader

PATH = Path(os.environ["PLACE"], "numbers.bin")

class Numbers:
    def __init__(self):
        self.handle = os.open(PATH, os.O_RDONLY)
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        self.handle = os.open(PATH, os.O_RDONLY)
    def __len__(self):
        return 20_000
    def __getitem__(self, index):
        os.lseek(self.handle, index * 8, os.SEEK_SET)
        return int.from_bytes(os.read(self.handle, 8), "little")

if __name__ == "__main__":
    np.arange(20_000, dtype="<i8").tofile(PATH)
    loader = DataLoader(Numbers(), batch_size=100, num_workers=2, output="numpy", multiprocessing_context=BIRTH)
    read = np.concatenate([*loader])
    print(len(read), np.count_nonzero(read != np.arange(20_000)), "wrong")
"""


def test_a_file_reopened_in_setstate_gives_no_wrong_sample(run: Any, birth: str) -> None:
    assert run(birth, FILE) == "20000 0 wrong"


def test_a_connection_opened_while_unpickling_is_a_workers_own(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import os, socket, tempfile
        from stoker import DataLoader

        PATH = os.path.join(os.environ["PLACE"], "server")

        def connect(path):
            return Client(path)

        class Client:
            def __init__(self, path):
                self.path = path
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                self.socket.send(b"%d;" % os.getpid())
            def __reduce__(self):
                return connect, (self.path,)
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return os.getpid()

        if __name__ == "__main__":
            server = socket.socket(socket.AF_UNIX)
            server.bind(PATH)
            server.listen(10)
            server.settimeout(10)
            client = Client(PATH)
            loader = DataLoader(client, num_workers=2, output="numpy", multiprocessing_context=BIRTH)
            pids = {int(pid) for batch in loader for pid in batch}
            said = [server.accept()[0].recv(100).decode().rstrip(";") for _ in range(3)]
            print(said[0] == str(os.getpid()), len(pids), sorted(map(int, said[1:])) == sorted(pids))
        """,
    )
    assert seen == "True 2 True"


def test_functions_are_unpickled_by_each_worker(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import os
        from stoker import DataLoader

        class Born:
            def __setstate__(self, state):
                self.pid = os.getpid()
            def __getstate__(self):
                return 1

        class Collate(Born):
            def __call__(self, samples):
                return self.pid == os.getpid(), INIT, self.pid

        class Init(Born):
            def __call__(self, number):
                global INIT
                INIT = self.pid

        class OnError(Born):
            def __call__(self, failure):
                return "skip" if self.pid == os.getpid() else "raise"

        class Data:
            def __len__(self):
                return 16
            def __getitem__(self, index):
                return 1 / (index % 2)

        if __name__ == "__main__":
            loader = DataLoader(
                Data(), batch_size=2, num_workers=2, collate_fn=Collate(), worker_init_fn=Init(), on_error=OnError(),
                multiprocessing_context=BIRTH,
            )
            seen = list(loader)
            print(len(seen), all(own and init == pid for own, init, pid in seen), len({pid for *_, pid in seen}))
        """,
    )
    assert seen == "8 True 2"


OWN = """
import os
with open(os.path.join(os.environ["PLACE"], "imports"), "a") as file:
    print(os.getpid(), file=file)
class Data:
{declared}
    def __len__(self):
        return 8
    def __setstate__(self, state):
        self.pid = os.getpid()
    def __getstate__(self):
        return 1
    def __getitem__(self, index):
        return self.pid
"""

USING_OWN = """
import os
from pathlib import Path
import own
from stoker import DataLoader
from torch.utils.data import Subset

if __name__ == "__main__":
    dataset = {dataset}
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context=BIRTH)
    pids = {{int(pid) for batch in loader for pid in batch}}
    imports = [int(line) for line in Path(os.environ["PLACE"], "imports").read_text().split()]
    print(len(pids), imports[0] == os.getpid(), sorted(imports[1:]) == sorted(pids))
"""


def test_the_users_module_is_imported_by_each_worker(run: Any, birth: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(OWN.format(declared=""))
    assert run(birth, USING_OWN.format(dataset="own.Data()"), torch=True) == "2 True True"


@pytest.mark.parametrize("dataset", ["own.Data()", "Subset(own.Data(), range(8))"])
def test_unpickle_once_shares_one_unpickling(run: Any, birth: str, tmp_path: Path, dataset: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(OWN.format(declared="    unpickle_once = True"))
    assert run(birth, USING_OWN.format(dataset=dataset), torch=True) == "1 True True"


INSTALLED = """
import os, sys
with open(os.path.join(os.environ["PLACE"], "installed"), "a") as file:
    print(os.getpid(), os.getppid(), file=file)
"""


def test_an_installed_package_is_imported_once(run: Any, birth: str, tmp_path: Path) -> None:
    """Also one that only the user's own module imports."""
    site = tmp_path / "site-packages"
    site.mkdir()
    for name in ("named", "needed"):
        (site / f"{name}.py").write_text(INSTALLED)
    with open(site / "named.py", "a") as file:
        file.write("class Data(list): pass\n")
    (tmp_path / "own.py").write_text("import needed\nfrom named import Data\nclass Mine(Data): pass\n")
    seen = run(
        birth,
        """
        import os, sys
        from pathlib import Path
        sys.path.append(os.path.join(os.environ["PLACE"], "site-packages"))
        import own
        from stoker import DataLoader

        if __name__ == "__main__":
            list(DataLoader(own.Mine(range(8)), num_workers=2, multiprocessing_context=BIRTH))
            imports = [line.split() for line in Path(os.environ["PLACE"], "installed").read_text().splitlines()]
            trainers, helpers = imports[:2], imports[2:]
            here = str(os.getpid())
            print([pid == here for pid, _ in trainers], [parent == here for _, parent in helpers])
        """,
    )
    assert seen == "[True, True] [True, True]"


@pytest.mark.parametrize("starts", ["", "jax._src.xla_bridge._backends['cpu'] = 1\n"])
def test_jax_is_imported_once_and_its_starters_in_workers(run: Any, birth: str, starts: str, tmp_path: Path) -> None:
    """A module whose import starts JAX's threads is left to the workers: no fork survives them."""
    source = tmp_path / "site-packages" / "jax" / "_src"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").write_text(INSTALLED + "import jax._src.xla_bridge\n")
    (source / "xla_bridge.py").write_text("_backends = {}")
    (source.parents[1] / "layers.py").write_text(INSTALLED + f"import jax\n{starts}class Data(list): pass\n")
    seen = run(
        birth,
        """
        import os, sys
        from pathlib import Path
        sys.path.append(os.path.join(os.environ["PLACE"], "site-packages"))
        import jax, layers
        from stoker import DataLoader

        class Pids(layers.Data):
            def __getitem__(self, index):
                return os.getpid()

        if __name__ == "__main__":
            batches = list(DataLoader(Pids(range(8)), num_workers=2, multiprocessing_context=BIRTH))
            pids = {int(pid) for batch in batches for pid in batch}
            imports = [int(line.split()[0]) for line in Path(os.environ["PLACE"], "installed").read_text().splitlines()]
            helpers = [pid for pid in imports[2:] if pid not in pids]
            print(imports[:2] == 2 * [os.getpid()], len(helpers), len({*helpers}), sorted(imports[2:]).count(max(pids)))
        """,
    )
    if birth == "fork":
        assert seen == "True 0 0 0"
    elif starts:  # jax and layers, and jax again by the same process, which has started over
        assert seen == "True 3 1 1"
    else:
        assert seen == "True 2 1 0"


def test_replacement_worker_unpickles_the_payload(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import os, signal, warnings
        import numpy as np
        from stoker import DataLoader
        PLACE = os.environ["PLACE"]

        class Data:
            def __init__(self):
                self.rows = np.arange(100_000)
            def __setstate__(self, state):
                self.__dict__.update(state)
                self.pid = os.getpid()
                open(os.path.join(PLACE, f"born-{self.pid}"), "w").close()
            def __len__(self):
                return 20
            def __getitem__(self, index):
                if index == 5 and not os.path.exists(os.path.join(PLACE, "killed")):
                    open(os.path.join(PLACE, "killed"), "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                return index, self.pid == os.getpid(), self.rows[-1]

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            loader = DataLoader(Data(), batch_size=2, num_workers=2, output="numpy", multiprocessing_context=BIRTH)
            batches = list(loader)
            print(np.concatenate([index for index, *_ in batches]).tolist() == list(range(20)))
            print(all(own.all() and (last == 99_999).all() for _, own, last in batches))
            print(len([name for name in os.listdir(PLACE) if name.startswith("born-")]))
        """,
    )
    assert seen.split() == ["True", "True", "3"]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("raise KeyError('no key')", "KeyError: 'no key'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_error_while_unpickling_comes_once(run: Any, birth: str, raised: str, told: str) -> None:
    seen = run(
        birth,
        """
        import os
        from pathlib import Path
        from stoker import DataLoader
        from stoker.errors import WorkerStartError
        PLACE = Path(os.environ["PLACE"], "tried")

        class Data:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return index
            def __getstate__(self):
                return 1
            def __setstate__(self, state):
                with open(PLACE, "a") as file:
                    print(os.getpid(), file=file)
                RAISED

        if __name__ == "__main__":
            events = []
            try:
                loader = DataLoader(Data(), num_workers=2, multiprocessing_context=BIRTH, on_event=events.append)
                list(loader)
            except WorkerStartError as error:
                print(error)
            print(events, len(PLACE.read_text().split()) <= 2)
        """.replace("RAISED", raised),
    )
    message, rest = seen.rsplit("\n", 1)
    assert message.startswith(f"a clean worker could not rebuild what it was sent: {told}. It imports modules anew")
    assert rest == "[] True"


@pytest.mark.parametrize("first", [True, False], ids=["the first worker", "a replacement"])
def test_a_worker_that_dies_while_unpickling_ends_the_run(run: Any, birth: str, first: bool) -> None:
    """No other is tried where none ever came to its end; a replacement counts as any worker does."""
    seen = run(
        birth,
        """
        import os, signal, warnings
        from stoker import DataLoader, WorkerDiedError
        PLACE = os.environ["PLACE"]

        class Data:
            def __setstate__(self, state):
                open(os.path.join(PLACE, f"born-{os.getpid()}"), "w").close()
                if FIRST or os.path.exists(os.path.join(PLACE, "killed")):
                    os._exit(7)
            def __getstate__(self):
                return 1
            def __len__(self):
                return 20
            def __getitem__(self, index):
                open(os.path.join(PLACE, "killed"), "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            loader = DataLoader(
                Data(), batch_size=2, num_workers=1, output="numpy", multiprocessing_context=BIRTH, max_restarts=2
            )
            try:
                list(loader)
            except WorkerDiedError as error:
                print(error)
            print(len([name for name in os.listdir(PLACE) if name.startswith("born-")]))
        """.replace("FIRST", str(first)),
    )
    lines = seen.splitlines()
    assert "ended while it made its copy of the dataset (unpickling)" in lines[0]
    assert int(lines[-1]) == (1 if first else 3)


def test_a_worker_killed_while_unpickling_is_replaced(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import os, signal, warnings
        from stoker import DataLoader
        KILLED = os.path.join(os.environ["PLACE"], "killed")

        class Data:
            def __setstate__(self, state):
                if not os.path.exists(KILLED):
                    open(KILLED, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            def __getstate__(self):
                return 1
            def __len__(self):
                return 6
            def __getitem__(self, index):
                return index

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            loader = DataLoader(Data(), num_workers=1, output="numpy", multiprocessing_context=BIRTH)
            print([int(batch[0]) for batch in loader], os.path.exists(KILLED))
        """,
    )
    assert seen == "[0, 1, 2, 3, 4, 5] True"


def test_an_array_lies_in_memory_once_for_all_workers(run: Any, birth: str) -> None:
    """Also for one that takes another's place; what a worker writes to is its own."""
    seen = run(
        birth,
        """
        import os, signal, warnings
        import numpy as np
        from stoker import DataLoader
        from stoker._engine.process.linux import private_bytes

        class Data:
            def __init__(self):
                self.rows = np.ones(8 << 20)
            def __len__(self):
                return 20
            def __getitem__(self, index):
                if index == 5 and not os.path.exists(os.path.join(os.environ["PLACE"], "killed")):
                    open(os.path.join(os.environ["PLACE"], "killed"), "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                self.rows[0] += 1
                return os.getpid(), self.rows[1:].sum() == (8 << 20) - 1, self.rows[0], private_bytes(os.getpid())

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            data = Data()
            loader = DataLoader(data, num_workers=2, output="numpy", multiprocessing_context=BIRTH)
            pids, whole, written, private = zip(*loader)
            counts = {}
            for pid, value in zip(pids, written):
                counts.setdefault(int(pid[0]), []).append(float(value[0]))
            print(all(map(bool, whole)), max(private)[0] < 40 << 20, data.rows[0])
            print(all(len({*seen}) == len(seen) for seen in counts.values()))
        """,
    )
    assert seen.split() == ["True", "True", "1.0", "True"]
