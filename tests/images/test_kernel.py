"""The compiled decoder: how it is built and bound, and that Pillow decodes everything where it cannot be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL")

from PIL import Image

from stoker._core.native import jpeg
from stoker.images import kernel

SOURCE = Path(jpeg.__file__).with_name("jpeg.c")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
LINKED = ["-ldl", "-lm", "-pthread"]
ROOT = Path(__file__).parents[2]

needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture
def unbound() -> None:
    """What the kernel is found to be is found anew, by this test alone."""
    kernel._found.cache_clear()
    yield
    kernel._found.cache_clear()


def test_it_is_there_where_it_can_be_built() -> None:
    """Else everything here would be tested without it, and the tests would not say so."""
    refused = os.environ.get("STOKER_NATIVE") == "0"
    is_linked = getattr(Image.core, "__file__", "").endswith(".so")
    assert (kernel.bound() is not None) == (COMPILER is not None and not refused and is_linked), kernel.backend()


def test_backend_says_what_decodes(compiled: kernel.Kernel) -> None:
    assert kernel.backend().startswith("compiled, ")
    assert f"Pillow {Image.__version__} (ABI {compiled.abi})" in kernel.backend()


def test_backend_says_why_pillow_decodes() -> None:
    program = """
import io
from PIL import Image
from stoker import images
print(images.backend())
file = io.BytesIO()
Image.new("RGB", (40, 30), (200, 30, 10)).save(file, "JPEG")
with images.register():
    print(type(Image.open(file)).__name__, images.decode(file.getvalue(), (1, 2, 9, 9), (4, 5)).shape)
"""
    environment = {**os.environ, "STOKER_NATIVE": "0"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    said, opened = run.stdout.splitlines()
    assert said == f"Pillow {Image.__version__} decodes all images: STOKER_NATIVE=0"
    assert opened == "LazyJpegFile (5, 4, 3)"


def test_missing_pillow_names_the_extra() -> None:
    program = """
import sys
sys.modules["PIL"] = None
import stoker.images
try:
    stoker.images.decode
except stoker.MissingExtraError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "images need Pillow, which is not installed: pip install 'stoker[images]'\n"


def test_importing_images_loads_neither_pillow_nor_torch() -> None:
    program = "import sys, stoker.images; print({'PIL', 'numpy', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "set()\n"
    program = "import sys, stoker.images; stoker.images.register(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "False\n"


def test_first_use_may_be_a_registered_image(compiled: kernel.Kernel) -> None:
    program = """
import io
from PIL import Image
from stoker.images.kernel import JPEG
from stoker import images
images.register()
print(type(Image.open(io.BytesIO(JPEG)).convert("RGB")).__name__, type(images.open(JPEG).crop((0, 0, 9, 9))).__name__)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "LazyImage LazyImage\n"


def test_other_pixels_than_pillow_are_not_trusted(monkeypatch: pytest.MonkeyPatch, unbound: None) -> None:
    if jpeg.functions is None:
        pytest.skip(jpeg.why)
    honest = kernel.decode_from

    def wrong(found: kernel.Kernel, data: bytes, request: kernel.Request, out: kernel.Pixels, header: object) -> int:
        outcome = honest(found, data, request, out, header)
        if request.flip:
            out[-1, -1, -1] ^= 1
        return outcome

    monkeypatch.setattr(kernel, "decode_from", wrong)
    assert kernel.bound() is None
    assert "gave other pixels than Pillow in its test (part)" in kernel.backend()


def test_unknown_order_of_passes_is_not_trusted(monkeypatch: pytest.MonkeyPatch, unbound: None) -> None:
    if jpeg.functions is None:
        pytest.skip(jpeg.why)
    monkeypatch.setattr(kernel, "_is_columns_first", lambda *shape: shape == (40, 40, 8, 38))
    assert "does the two passes in an order that is not known" in kernel.backend()


@pytest.mark.parametrize(
    ("abi", "said"),
    [(-1, "is not a loaded library"), (-2, "offers no partial decoding"), (-3, "neither of the ABIs 62 and 80")],
)
def test_library_that_cannot_be_bound(abi: int, said: str, monkeypatch: pytest.MonkeyPatch, unbound: None) -> None:
    if jpeg.functions is None:
        pytest.skip(jpeg.why)
    monkeypatch.setattr(jpeg, "functions", jpeg.functions._replace(bind=lambda path: abi))
    assert kernel.backend().endswith(said)


def build(folder: Path, *flags: str, compiler: list[str] | None = None) -> Path:
    library = folder / "jpeg.bin"
    command = [*(compiler or [str(COMPILER)]), "-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *flags]
    subprocess.run([*command, "-o", str(library), str(SOURCE), *LINKED], check=True, capture_output=True, text=True)
    return library


@needs_a_compiler
def test_its_source_compiles_without_a_warning(tmp_path: Path) -> None:
    build(tmp_path, "-Wall", "-Wextra", "-Wconversion", "-Werror")


@needs_a_compiler
def test_library_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text("int stoker_jpeg_version(void) { return 99; }")
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", "jpeg.bin", "other.c"], cwd=tmp_path, check=True)
    program = f"""
import pathlib
pathlib.Path.with_name = lambda self, name: pathlib.Path({str(tmp_path / "jpeg.bin")!r})
from stoker._core.native import jpeg
print(jpeg.functions, jpeg.why)
"""
    environment = {**os.environ, "STOKER_NATIVE": ""}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout == "None it was built from other sources (version 99, not 2): install Stoker again\n"


FIELDS = {
    "err": "errors", "mem": "memory", "client_data": "client", "image_width": "width", "jpeg_color_space": "colours",
    "out_color_space": "wanted_colours", "scale_num": "scale", "output_width": "scaled_width",
    "out_color_components": "channels", "coef_bits": "missing_bits", "data_precision": "precision",
    "progressive_mode": "progressive", "cquantize": "parts[10]",
}  # fmt: skip


@needs_a_compiler
@pytest.mark.parametrize("abi", [62, 80])
def test_records_are_laid_out_as_in_the_header_of_libjpeg(abi: int, tmp_path: Path) -> None:
    checks = [f"offsetof(struct jpeg_decompress_struct, {a}) == offsetof(struct decompressor_{abi}, {b})"
              for a, b in FIELDS.items()]  # fmt: skip
    checks += [
        f"sizeof(struct jpeg_decompress_struct) == sizeof(struct decompressor_{abi})",
        f"sizeof(struct jpeg_error_mgr) == sizeof(struct errors_{abi})",
        f"sizeof(struct jpeg_memory_mgr) == sizeof(struct memory_{abi})",
        f"offsetof(struct jpeg_memory_mgr, max_memory_to_use) == offsetof(struct memory_{abi}, most)",
    ]
    program = tmp_path / "check.c"
    program.write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include <jpeglib.h>\n#define ABI {abi}\n#include "jpeg_abi.h"\n'
        f'_Static_assert(JPEG_LIB_VERSION == {abi}, "the ABI of the header");\n'
        + "".join(f'_Static_assert({check}, "{check}");\n' for check in checks)
    )
    (tmp_path / "jconfig.h").write_text(
        f"#include_next <jconfig.h>\n#undef JPEG_LIB_VERSION\n#define JPEG_LIB_VERSION {abi}\n"
    )
    command = [str(COMPILER), "-std=c11", "-fsyntax-only", f"-I{tmp_path}", f"-I{SOURCE.parent}", str(program)]
    run = subprocess.run(command, capture_output=True, text=True)
    if "jpeglib.h: No such file" in run.stderr or "jconfig.h: No such file" in run.stderr:
        pytest.skip("the headers of libjpeg are not installed")
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "aarch64-macos", "x86_64-linux-musl"])
def test_source_compiles_for_other_platforms(target: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    flags = ["-target", target, "-Wall", "-Wextra", "-Werror"]
    assert build(tmp_path, *flags, compiler=[sys.executable, "-m", "ziglang", "cc"]).stat().st_size > 10_000


def test_library_of_the_other_abi_decodes_too() -> None:
    """torchvision's wheel has a libjpeg of ABI 8, Pillow's one of ABI 6.2."""
    places = [Path(place) / "torchvision.libs" for place in sys.path]
    libraries = [str(library) for place in places for library in place.glob("libjpeg*.so.8*")]
    if not libraries or kernel.bound() is None:
        pytest.skip("there is no such library, or no kernel")
    program = f"""
import ctypes
from stoker._core.native import jpeg
from stoker.images import kernel
library = ctypes.CDLL({libraries[0]!r})
abi = jpeg.functions.bind({libraries[0]!r}.encode())
found = kernel.Kernel(jpeg.functions, kernel._order_of_passes(), jpeg.functions.level(), abi)
print(abi, kernel._differing(found))
"""
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "80 None\n"
