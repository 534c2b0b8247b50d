"""Draws the pictures of docs/guides/slow-training.md: the reports of its own program, before and after the cure.

    python scripts/report_pictures.py docs/guides/pictures

Needs the extra `browser`, Pillow, and a Chromium of the system. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "slow-training.md"
WIDTH = 900


def main(folder: Path) -> None:
    program, cure, *others = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with tempfile.TemporaryDirectory() as work:
        script, before, after, both, samples = (
            Path(work, name) for name in ("train.py", "before.html", "after.html", "both.html", "samples.html")
        )
        script.write_text(program, encoding="utf-8")
        stoker("run", "--report", before.name, script.name, inside=work)
        script.write_text(program.partition("if __name__")[0] + cure, encoding="utf-8")
        stoker("run", "--report", after.name, script.name, inside=work)
        script.write_text(next(one for one in others if "WeightedRandomSampler" in one), encoding="utf-8")
        stoker("run", "--report", samples.name, script.name, inside=work)
        stoker("compare", before.name, after.name, "--report", both.name, inside=work)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for page, until, name in (
                (before, "What if", "verdict.png"),  # of the README
                (before, "Over time", "report.png"),
                (both, "share of time waited", "compared.png"),
            ):
                tab = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
                tab.goto(page.as_uri())
                tab.wait_for_timeout(500)  # the charts are drawn
                height = tab.get_by_text(until, exact=True).first.bounding_box()["y"] - 8
                picture = tab.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
                save(picture, folder / name)
            tab = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
            tab.goto(samples.as_uri())
            tab.wait_for_timeout(500)
            save(tab.locator("#composition").screenshot(), folder / "samples.png")
            browser.close()


def save(picture: bytes, path: Path) -> None:
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def stoker(*arguments: str, inside: str) -> None:
    subprocess.run([sys.executable, "-m", "stoker", *arguments], cwd=inside, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
