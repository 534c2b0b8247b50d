from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DuplicateKeyError, ShardError
from stoker.sources.storage import LocalFile
from stoker.sources.tar import members
from stoker.sources.tar.members import SMALL_WINDOW, MemberReader, read_sample
from tests.sources.tar.shards import write_shard


def read(path: str, window: int = 256 << 10) -> list[dict[str, Any]]:
    reader = MemberReader(LocalFile(path), path, window=window)
    samples = []
    reader.advance()
    while reader.key is not None:
        samples.append({name: value for name, value in read_sample(reader, path).items() if name != "__url__"})
    return samples


LONG = "folder/" * 30 + "n" * 140
SIZES = [0, 1, 511, 512, 513, 9000, 40_000, 300_000]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("window", [512, 8192, 256 << 10])
def test_members_are_those_of_tarfile(tmp_path: Path, format: int, window: int) -> None:
    names = ["a/b.seg.png", "a/b.JSON", "plain.cls", "deep/er/é.txt", "x" * 90 + ".txt"]
    if format == tarfile.USTAR_FORMAT:
        names.append("p" * 80 + "/" + "q" * 90 + ".txt")  # by the prefix field
    else:
        names += [LONG + ".txt", LONG + ".cls"]
    members = [
        (f"{number}-{name}", bytes([number]) * size)
        for number, (name, size) in enumerate(zip(names, SIZES, strict=False))
    ]
    path = write_shard(tmp_path / "a.tar", members, format)
    found = {
        f"{sample['__key__']}.{extension}": data
        for sample in read(path, window)
        for extension, data in sample.items()
        if extension != "__key__"
    }
    assert found == {name.replace("JSON", "json"): data for name, data in members}


def test_members_of_gnu_tar_are_read(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("tar") is None:
        pytest.skip("there is no tar program")
    long = "l" * 200
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name in ("1.txt", "1.cls", f"sub/{long}.txt"):
        (tmp_path / "in" / name).write_text(name)
    for format in ("gnu", "posix"):
        command = ["tar", f"--format={format}", "--sort=name", "-cf", f"../{format}.tar", "."]
        subprocess.run(command, cwd=tmp_path / "in", check=True)
        found = read(str(tmp_path / f"{format}.tar"))
        assert found == [
            {"__key__": "./1", "cls": b"1.cls", "txt": b"1.txt"},
            {"__key__": f"./sub/{long}", "txt": f"sub/{long}.txt".encode()},
        ]


def test_keys_end_at_the_first_dot_of_the_file_name(tmp_path: Path) -> None:
    names = ["a.b/c.d.e", "a.b/c.D.F", "without", ".hidden", "x/.hidden.txt", "__meta__/a.txt", "dot.", "_a_.txt"]
    found = read(write_shard(tmp_path / "a.tar", [(name, name.encode()) for name in names]))
    assert found == [
        {"__key__": "a.b/c", "d.e": b"a.b/c.d.e", "d.f": b"a.b/c.D.F"},
        {"__key__": "_a_", "txt": b"_a_.txt"},
    ]


def test_folders_and_other_members_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as shard:
        for kind, name in ((tarfile.DIRTYPE, "folder"), (tarfile.FIFOTYPE, "pipe.x"), (tarfile.SYMTYPE, "latest")):
            member = tarfile.TarInfo(name)
            member.type = kind
            shard.addfile(member)
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        shard.addfile(member, io.BytesIO(b"a"))
    assert read(str(path)) == [{"__key__": "a", "txt": b"a"}]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_link_in_the_place_of_a_sample_is_an_error(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as shard:
        member = tarfile.TarInfo("a.txt")
        member.type, member.linkname = kind, "b.txt"
        shard.addfile(member)
    with pytest.raises(ShardError, match=r"a\.tar, byte 0: the member 'a\.txt' is a link.*--dereference"):
        read(str(path))


@pytest.mark.parametrize("name", ["../a.txt", "x/../../a.txt", "/etc/a.txt"])
def test_path_that_climbs_out_is_refused(tmp_path: Path, name: str) -> None:
    path = write_shard(tmp_path / "a.tar", [("ok.txt", b""), (name, b"x")])
    with pytest.raises(ShardError, match=r"byte 512: the member .* leads out of the archive"):
        read(path)
    assert read(write_shard(tmp_path / "b.tar", [("..a/b..c.txt", b"")])) == [{"__key__": "..a/b", ".c.txt": b""}]


def test_member_twice_in_a_sample_is_an_error(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [("a.txt", b"1"), ("a.TXT", b"2"), ("b.txt", b"3")])
    reader = MemberReader(LocalFile(path), path)
    reader.advance()
    with pytest.raises(DuplicateKeyError, match=r"byte 1024: the sample 'a' has two members of 'txt'"):
        read_sample(reader, path)
    assert read_sample(reader, path)["txt"] == b"3", "the next sample follows"


@pytest.mark.parametrize("cut", [100, 512, 700, 1024, 1536, 2000, 2048, 41_000, 42_496])
@pytest.mark.parametrize("window", [SMALL_WINDOW, 256 << 10])
def test_truncated_shard_is_an_error_that_names_the_byte(tmp_path: Path, cut: int, window: int) -> None:
    path = Path(write_shard(tmp_path / "a.tar", [("a.txt", b"a"), ("b.bin", bytes(40_000))]))
    assert path.stat().st_size > 42_496  # 1024 + 512 + 40,448 + the end mark at 41,984
    path.write_bytes(path.read_bytes()[:cut])
    if cut >= 42_496:
        assert len(read(str(path), window)) == 2, "one block of zeros is an end mark"
        return
    begin = {2000: 1536, 2048: 1536, 41_000: 1536}.get(cut, r"\d+")
    with pytest.raises(ShardError, match=rf"a\.tar ends at byte {cut}, but \d+ bytes were expected from byte {begin} "):
        read(str(path), window)


def test_damaged_header_is_an_error_that_names_the_byte(tmp_path: Path) -> None:
    path = Path(write_shard(tmp_path / "a.tar", [("a.txt", b"a"), ("b.txt", b"b")]))
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"byte 1024: there is no tar header.*key 'a'"):
        read(str(path))


@pytest.mark.parametrize(("magic", "name"), [(b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")])
def test_compressed_shard_is_named_as_such(tmp_path: Path, magic: bytes, name: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(magic + bytes(2000))
    with pytest.raises(ShardError, match=f"compressed \\({name}\\)"):
        read(str(path))
    path.write_bytes(b"")
    with pytest.raises(ShardError, match="ends at byte 0"):
        read(str(path))


def test_sizes_of_more_than_8_gib_are_understood() -> None:
    member = tarfile.TarInfo("a.bin")
    member.size = 20 << 30
    block = member.tobuf(tarfile.GNU_FORMAT)
    assert members.parsed(block) == (ord("0"), b"a.bin", 20 << 30)
    pax = member.tobuf(tarfile.PAX_FORMAT)
    assert members.pax_records(pax[512 : 512 + 100])[b"size"] == str(20 << 30).encode()


def test_checksum_is_compared() -> None:
    block = bytearray(tarfile.TarInfo("a.bin").tobuf())
    assert members.parsed(bytes(block))[1] == b"a.bin"
    for place in (0, 99, 124, 300, 511):
        damaged = bytearray(block)
        damaged[place] ^= 0x10
        with pytest.raises(members.HeaderError, match="checksum"):
            members.parsed(bytes(damaged))


@pytest.mark.parametrize("size", [b"-0000001000\0", b"\xff" * 12, b"x" * 12])
def test_absurd_size_is_an_error(tmp_path: Path, size: bytes) -> None:
    path = tmp_path / "a.tar"
    block = bytearray(tarfile.TarInfo("a.bin").tobuf())
    block[124:136], block[148:156] = size, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(2000))
    with pytest.raises(ShardError, match="byte 0: a header holds"):
        read(str(path))


@pytest.mark.parametrize("size", [b"-1", b"1e3"])
def test_absurd_size_in_a_pax_header_is_an_error(tmp_path: Path, size: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        member = tarfile.TarInfo("a.bin")
        member.pax_headers = {"size": size.decode()}
        shard.addfile(member)
    with pytest.raises(ShardError, match="pax header holds no size"):
        read(str(path))


@pytest.mark.parametrize("records", [b"20 path=a\n", b"x path=a\n", b"0 a=b\n", b"9 patha\n\n", b"-5 a=b\n"])
def test_damaged_pax_records_are_errors(records: bytes) -> None:
    with pytest.raises(members.HeaderError, match="pax header is damaged"):
        members.pax_records(records)
    assert members.pax_records(b"9 path=a\n13 size=1234\n") == {b"path": b"a", b"size": b"1234"}


def of_type(kind: bytes, block: bytes, signed: bool = False) -> bytes:
    """A header with another type, and its checksum; of signed bytes, as some old programs added them."""
    changed = bytearray(block)
    changed[156:157], changed[148:156] = kind, b" " * 8
    total = sum(byte - 256 * (signed and byte > 127) for byte in changed)
    changed[148:156] = b"%06o\0 " % total
    return bytes(changed)


def member(name: str, data: bytes = b"", **pax: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = len(data), pax
    return info.tobuf(tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


END = bytes(1024)
A = member("a.txt", b"a")


def of_tarfile(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as shard:
        found = [(each.name, shard.extractfile(each)) for each in shard if each.isreg() and each.name.count(".")]
        return {name: file.read() for name, file in found if file is not None}


def of_stoker(path: Path) -> dict[str, bytes]:
    samples = read(str(path))
    return {f"{each.pop('__key__')}.{name}": each[name] for each in samples for name in [*each] if name != "__key__"}


def test_members_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    listing = member("folder", b"Yx.txt\0\0")
    solaris = bytearray(member("b", b"b", path="deep/b.txt", comment="c"))
    solaris[:512] = of_type(b"X", bytes(solaris[:512]))
    for blocks in (
        of_type(b"V", member("label.v1")) + A,
        of_type(b"D", listing[:512]) + listing[512:] + A,
        bytes(solaris) + A,
        of_type(b"x", member("x")) + A,
        of_type(b"0", A[:512].replace(b"a.txt\0", b"\xc3\xa9.txt"), signed=True) + A[512:],
        of_type(b"Z", listing[:512]) + listing[512:] + A,
        A + of_type(b"K", listing[:512]) + listing[512:] + member("b.txt", b"b"),
        of_type(b"g", (pax := member("", b"", path="b.txt"))[:512]) + pax[512:1024] + member("c", b"c") + END,
    ):
        path.write_bytes(blocks + END)
        assert of_stoker(path) == of_tarfile(path) != {}
    assert of_stoker(path) == {"b.txt": b"c"}
    path.write_bytes(of_type(b"g", pax[:512]) + pax[512:1024] + member("c", b"c") + A + END)
    with pytest.raises(ShardError, match=r"byte 2048: .*'a\.txt' has its path from a global header before other"):
        read(str(path))
    path.write_bytes(of_type(b"M", A[:512]) + A[512:] + END)
    with pytest.raises(ShardError, match=r"byte 0: the member 'a\.txt' is of type 'M'"):
        read(str(path))


def test_sparse_members_of_no_sample_are_passed_over(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("tar") is None:
        pytest.skip("there is no tar program")
    for name in ("holes", "holes.bin"):
        with open(tmp_path / name, "wb") as file:
            for place in range(60):  # more pieces than a header's map holds
                file.seek(place * 16384)
                file.write(b"x" * 512)
    (tmp_path / "z.txt").write_bytes(b"z")
    of_pax = [["--format=pax", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")]
    for options in (*of_pax, ["--format=gnu"]):
        tar = ["tar", "-C", str(tmp_path), "--sparse", *options, "-cf", str(tmp_path / "a.tar")]
        subprocess.run([*tar, "holes", "z.txt"], check=True, timeout=60)
        assert (tmp_path / "a.tar").stat().st_size < 400_000
        assert of_stoker(tmp_path / "a.tar") == {"z.txt": b"z"} == of_tarfile(tmp_path / "a.tar"), options
        subprocess.run([*tar, "holes.bin", "z.txt"], check=True, timeout=60)
        reader = MemberReader(LocalFile(str(tmp_path / "a.tar")), "a.tar")
        with pytest.raises(ShardError, match=r"the member 'holes\.bin' is a sparse file.*--sparse"):
            reader.advance()
        assert reader.advance() and reader.body() == b"z", "the next member follows"


def test_labels_and_incremental_dumps_of_gnu_tar_are_read(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("tar") is None:
        pytest.skip("there is no tar program")
    (tmp_path / "in.d" / "deep.d").mkdir(parents=True)
    for name in ("1.txt", "deep.d/2.txt"):
        (tmp_path / "in.d" / name).write_bytes(name.encode())
    tar = ["tar", "-C", str(tmp_path), "-cf", str(tmp_path / "a.tar"), "--label=a.label"]
    for options in ([], [f"--listed-incremental={tmp_path}/dump"], ["--format=pax"]):
        subprocess.run([*tar, *options, "in.d"], check=True, timeout=60)
        expected = {"in.d/1.txt": b"1.txt", "in.d/deep.d/2.txt": b"deep.d/2.txt"}
        assert of_stoker(tmp_path / "a.tar") == expected, options  # tarfile takes the times of a dump for folders


def test_sparse_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        member = tarfile.TarInfo("a.bin")
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        shard.addfile(member)
    with pytest.raises(ShardError, match="sparse"):
        read(str(path))
