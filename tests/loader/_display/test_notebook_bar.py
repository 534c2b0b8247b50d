"""In a kernel of Jupyter, `progress()` replaces one output of the cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stoker.loader._display.progress_bar import NotebookBar, in_notebook

CELL = """
import stoker
loader = stoker.DataLoader(list(range(40)), batch_size=4, num_workers=2)
for batch in loader.progress("<train>"):
    pass
"""


RUN = """
import nbclient, nbformat, sys
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.argv[1])])
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


@pytest.mark.long
def test_bar_stays_in_the_notebook_that_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    ran = subprocess.run([sys.executable, "-c", RUN, CELL], capture_output=True, text=True, check=True, cwd=tmp_path)
    (output,) = json.loads(ran.stdout)["cells"][0]["outputs"]
    text, page = ("".join(output["data"][kind]) for kind in ("text/plain", "text/html"))
    assert text.startswith("<train> 10/10 ") and "% waited" in text
    assert '&lt;train&gt; <progress value="10" max="10">' in page


def test_this_is_no_notebook() -> None:
    assert not in_notebook()


@pytest.mark.parametrize(("total", "words"), [(10, "train 4/10 a, 0:0"), (None, "train 4/? a"), (0, "train 4/0 a")])
def test_bar_says_how_much_is_left(total: int | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Output:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data)

    front_end = ModuleType("IPython.display")
    front_end.display = lambda *_, **__: Output()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", front_end)
    NotebookBar("train", total, 0).show(4, "a")
    assert shown[0]["text/plain"].startswith(words)
    assert "<progress" in shown[0]["text/html"]
