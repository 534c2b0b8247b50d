"""What is sent arrives the same, large memory beside the pickle, and nothing is sent that would mean something else."""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker._engine.serialize import pickler
from stoker._engine.serialize.pickler import LARGE, MappedFiles
from stoker.errors import CannotSendError, MemoryLimitError

LENGTH = LARGE // 4
"""Elements of four bytes that make a large array."""


class Sent:
    """A value at the other end, the sizes of its large buffers, and the size of its pickle."""

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        large = pickler.write({"value": value}, None, file).large
        self.mapped = [view.nbytes for view in large]
        self.pickled = file.tell()
        file.seek(0)
        parts, _ = pickle.Unpickler(file, buffers=[memoryview(bytearray(view)) for view in large]).load()
        self.value = parts["value"]


def assert_same(sent: Any, array: Any) -> None:
    assert sent.dtype == array.dtype
    assert sent.shape == array.shape
    assert sent.flags.writeable == array.flags.writeable
    np.testing.assert_array_equal(sent, array)


def matrix() -> Any:
    return np.arange(LENGTH * 4, dtype=np.float32).reshape(4, LENGTH)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


ARRAYS = {
    "rows": matrix,
    "columns first": lambda: np.asfortranarray(matrix()),
    "read-only": lambda: frozen(matrix()),
    "transposed": lambda: matrix().reshape(4, 2, -1).transpose(2, 0, 1),
    "reversed": lambda: matrix()[::-1, ::-1],
    "most columns": lambda: matrix()[:, 5:],
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(matrix()[0], 100),
    "broadcast": lambda: np.broadcast_to(matrix()[0], (50, LENGTH)),
    "times": lambda: matrix().astype("datetime64[s]")[:, 1:],
    "records": lambda: np.zeros(LENGTH, dtype=[("a", "f4"), ("b", "i2", 3)])[::-1],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_large_array_goes_beside_the_pickle(kind: str) -> None:
    array = ARRAYS[kind]()
    sent = Sent(array)
    assert_same(sent.value, array)
    assert sent.pickled < 2000
    assert sum(sent.mapped) <= 2 * array.nbytes


def test_windows_over_a_series_are_sent_as_the_series() -> None:
    series = matrix().ravel()
    sent = Sent(np.lib.stride_tricks.sliding_window_view(series, 1000))
    assert sent.mapped == [series.nbytes]


def test_a_few_columns_of_many_are_sent_alone() -> None:
    table = np.arange(LENGTH * 40, dtype=np.float32).reshape(-1, 40)
    sent = Sent(table[:, 7])
    assert_same(sent.value, np.ascontiguousarray(table[:, 7]))
    assert sent.mapped == [LENGTH * 4]


@pytest.mark.parametrize(
    "array",
    [np.zeros(()), np.zeros((0, 3)), np.arange(10)[::2], np.array([{"a": 1}, None]), np.array(["ab", "c"])],
    ids=["no dimension", "empty", "small", "objects", "strings"],
)
def test_small_and_odd_arrays_stay_in_the_pickle(array: Any) -> None:
    sent = Sent(array)
    assert_same(sent.value, array)
    assert not sent.mapped


def test_a_large_array_of_objects_is_pickled() -> None:
    array = np.array([{"n": n} for n in range(LARGE // 8)])[::-1]
    assert Sent(array).value[-1] == {"n": 0}


def test_array_in_two_places_stays_one() -> None:
    array = matrix()
    sent = Sent([array, {"again": array}])
    assert sent.value[0] is sent.value[1]["again"]
    assert sent.mapped == [array.nbytes]


def test_large_bytes_arrive() -> None:
    value = [os.urandom(1 << 20), bytearray(1 << 20)]
    assert Sent(value).value == value


# Files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.bin"
    np.arange(50_000, dtype=np.int32).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["r", "c", "r+", "w+"])
def test_a_memory_map_is_sent_as_its_file(path: Path, mode: Any) -> None:
    numbers = np.memmap(path, np.int32, mode, offset=4096 * 3 + 4, shape=(100, 300))
    if mode == "w+":
        numbers[:] = 7
    sent = Sent(numbers)
    assert isinstance(sent.value, np.memmap)
    assert (sent.value.mode, sent.value.filename) == ("r+" if mode == "w+" else mode, numbers.filename)
    assert_same(sent.value, numbers)
    assert not sent.mapped
    assert sent.pickled < 1000


@pytest.mark.parametrize(
    "cut",
    [
        lambda numbers: numbers[20:40],
        lambda numbers: np.asarray(numbers)[::-3, 5:],
        lambda numbers: numbers[50].reshape(3, 100).T,
        lambda numbers: numbers.view(np.uint8)[:, 1:],
        lambda numbers: np.asarray(numbers).view("m8[s]"),
    ],
    ids=["rows", "backwards", "turned", "bytes", "times"],
)
def test_a_view_of_a_memory_map_is_sent_as_its_file(path: Path, cut: Any) -> None:
    numbers = np.memmap(path, np.int32, "r", offset=4100, shape=(100, 300))
    view = cut(numbers)
    sent = Sent(view)
    assert_same(sent.value, view)
    assert sent.pickled < 1000


def test_views_of_one_memory_map_share_it(path: Path) -> None:
    numbers = np.memmap(path, np.int32, "r+")
    one, other = Sent([numbers[:10], np.asarray(numbers)[5:]]).value
    one[5] = -1
    assert other[0] == numbers[5] == -1


def test_a_private_change_of_a_memory_map_is_sent(path: Path) -> None:
    numbers = np.memmap(path, np.int32, "c")
    numbers[3] = -1
    assert Sent(numbers).value[3] == -1


@pytest.mark.parametrize("fate", ["deleted", "replaced", "renamed"])
def test_a_memory_map_whose_file_has_gone_is_copied(path: Path, fate: str) -> None:
    numbers = np.memmap(path, np.int32, "r")
    path.rename(path.with_suffix(".old"))
    if fate == "replaced":
        np.zeros(50_000, np.int32).tofile(path)
    if fate == "deleted":
        path.with_suffix(".old").unlink()
    assert_same(np.array(Sent(numbers).value), np.arange(50_000, dtype=np.int32))


def test_an_array_file_with_an_odd_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a b (deleted).npy"
    np.save(path, matrix())
    link = tmp_path / "link"
    link.symlink_to(path)
    sent = Sent(np.load(link, mmap_mode="r"))
    assert sent.pickled < 1000
    np.testing.assert_array_equal(sent.value, matrix())


# What is not plain data


def test_locks_and_queues_pickle_as_in_multiprocessing() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, theirs, pickler.spawning() as descriptors:
        pickler.write({"lock": context.Lock(), "end": theirs}, None, io.BytesIO())
        assert descriptors == [theirs.fileno()]


def test_lock_is_pickled_only_while_a_process_starts() -> None:
    with pytest.raises(RuntimeError, match="through inheritance"):
        Sent(multiprocessing.get_context("spawn").Lock())


def test_permission_to_pickle_locks_ends_with_its_block() -> None:
    with pytest.raises(KeyError), pickler.spawning():
        raise KeyError
    assert multiprocessing.context.get_spawning_popen() is None


@pytest.mark.parametrize("name", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_a_lock_of_the_fork_context_is_refused(name: str) -> None:
    lock = getattr(multiprocessing.get_context("fork"), name)()
    with pytest.raises(RuntimeError, match="fork context"), pickler.spawning():
        Sent(lock)


def test_an_open_text_file_is_not_sent_as_its_content(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("content")
    with open(tmp_path / "list.txt") as file, pytest.raises(TypeError, match=r"an open file \(.*list.txt\)"):
        Sent(file)


class Reopened(ctypes.CDLL):
    def __reduce__(self) -> Any:
        return Reopened, (self._name,)


def test_ctypes_object_is_refused_unless_importable() -> None:
    """Its pickle could be written, and not be read."""
    for made in ctypes.c_int * 4, ctypes.CDLL(None):
        with pytest.raises(TypeError, match="ctypes type"):
            Sent(made)
    assert Sent(ctypes.c_int).value is ctypes.c_int
    assert Sent(Reopened(None)).value.getpid() == os.getpid()


def test_a_socket_travels_by_its_descriptor() -> None:
    with socket.socket() as end, pickler.spawning() as descriptors:
        pickler.write({"end": end}, None, io.BytesIO())
        assert descriptors == [end.fileno()]


def test_threads_do_not_share_a_birth() -> None:
    seen: list[Any] = []
    with pickler.spawning():
        thread = threading.Thread(target=lambda: seen.append(multiprocessing.context.get_spawning_popen()))
        thread.start()
        thread.join()
    assert seen == [None]


# torch


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_a_large_tensor_goes_beside_the_pickle(torch: Any) -> None:
    tensor = torch.arange(LENGTH, dtype=torch.float32).reshape(2, -1)
    sent = Sent(tensor)
    assert torch.equal(sent.value, tensor)
    assert (sent.mapped, sent.value.requires_grad) == ([LARGE], False)
    assert sent.pickled < 1000
    sent.value.add_(1)


def test_tensors_of_one_storage_still_share_it(torch: Any) -> None:
    whole = torch.zeros(10, LENGTH)
    sent = Sent({"whole": whole, "row": whole[3], "turned": whole.t(), "wide": whole[0].expand(5, -1)})
    sent.value["row"].fill_(5)
    assert sent.value["whole"][3].sum() == sent.value["turned"][:, 3].sum() == 5 * LENGTH
    assert sent.value["wide"].stride() == (0, 1)
    assert len(sent.mapped) == 1


def test_small_tensors_share_too_and_can_grow(torch: Any) -> None:
    whole = torch.zeros(10)
    sent = Sent([whole, whole[:5]])
    sent.value[1].fill_(2)
    assert sent.value[0].sum() == 10
    assert sent.value[0].resize_(1000).shape == (1000,)
    assert not sent.mapped


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_all_kinds(torch: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(LENGTH))
    leaf = torch.ones(LENGTH, requires_grad=True)
    kinds = {
        "bfloat16": torch.arange(LENGTH * 2).to(torch.bfloat16),
        "bool": torch.ones(3, dtype=torch.bool),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "uint16": torch.arange(LENGTH).to(torch.uint16),
        "conjugate": torch.ones(LENGTH, dtype=torch.complex64).conj(),
        "no dimension": torch.tensor(3),
        "empty": torch.zeros(0, 3),
        "non-leaf": leaf * 2,
        "sparse": torch.eye(50).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    sent = Sent({**kinds, "parameter": parameter, "leaf": leaf}).value
    for kind, tensor in kinds.items():
        assert (sent[kind].dtype, sent[kind].layout) == (tensor.dtype, tensor.layout), kind
        if kind == "nested":
            assert [part.tolist() for part in sent[kind].unbind()] == [[1, 1], [1, 1, 1]]
        elif kind == "float8":
            assert torch.equal(sent[kind].float(), tensor.float())
        else:
            assert torch.equal(sent[kind].to_dense(), tensor.to_dense()), kind
    assert type(sent["parameter"]) is torch.nn.Parameter
    assert sent["leaf"].requires_grad
    assert sent["conjugate"].is_conj()


def test_a_module_arrives_with_its_weights_tied(torch: Any) -> None:
    first = torch.nn.Linear(300, 300)
    second = torch.nn.Linear(300, 300)
    second.weight = first.weight
    sent = Sent([first, second])
    assert sent.value[0].weight is sent.value[1].weight
    assert sent.mapped == [300 * 300 * 4]


def test_a_tensor_without_memory_is_sent_as_that(torch: Any) -> None:
    assert Sent(torch.zeros(5, device="meta")).value.device.type == "meta"


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_plain_tensors_are_not_moved_to_shared_memory(torch: Any) -> None:
    tensor = torch.zeros(LENGTH)
    with pickler.spawning() as descriptors:
        sent = Sent([tensor, torch.nn.Parameter(tensor), tensor.storage(), torch.FloatStorage(3)]).value
    assert not descriptors
    assert not tensor.is_shared()
    assert (sent[3].dtype, len(sent[3])) == (torch.float32, 3)


def shared(*parts: Any) -> tuple[list[int], Any, list[object]]:
    """Pickles for a process; returns the descriptors that it needs, the parts as it would have them, what is lent."""
    file = io.BytesIO()
    with pickler.spawning() as descriptors:
        written = pickler.write({"parts": parts}, None, file)
        assert not written.large
    file.seek(0)
    with pytest.MonkeyPatch.context() as patch:  # the process would have descriptors of its own
        patch.setattr(pickler._Descriptor, "detach", lambda descriptor: os.dup(descriptor._number))
        return descriptors, pickle.load(file)[0]["parts"], written.lent


def test_a_shared_tensor_goes_by_its_descriptor(torch: Any) -> None:
    whole = torch.zeros(LENGTH).share_memory_()
    descriptors, (there, view), lent = shared(whole, whole[5:])
    assert len(descriptors) == 1 and not lent
    whole[5] = 3
    assert there[5] == view[0] == 3


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_shared_tensors_of_all_kinds(torch: Any) -> None:
    module = torch.nn.Linear(2, 2).share_memory()
    typed = torch.FloatStorage(4)
    typed.share_memory_()
    bits = torch.zeros(3, dtype=torch.uint16).share_memory_()
    descriptors, sent, _ = shared(module, typed, bits, torch.zeros(0).share_memory_())
    assert len(descriptors) == 4  # the empty one has no memory
    with torch.no_grad():
        module.weight.fill_(2)
    typed[1] = 4
    bits[0] = 7
    assert sent[0].weight.sum() == 8 and sent[0].weight.requires_grad
    assert (sent[1].dtype, sent[1][1], sent[2][0]) == (torch.float32, 4, 7)


def test_file_backed_tensor_is_opened_by_its_file(torch: Any, path: Path) -> None:
    size = {"size": 50_000, "dtype": torch.int32}
    tensor = torch.from_file(str(path), shared=True, **size)
    descriptors, (there,), _ = shared(tensor)
    there[3] = -1
    assert (tensor[3], np.fromfile(path, np.int32)[3], descriptors) == (-1, -1, [])
    private = torch.from_file(str(path), shared=False, **size)
    assert Sent(private).mapped == [200_000]
    path.unlink()
    assert torch.equal(Sent(tensor).value, tensor), "the memory is copied where the file has gone"


def test_shared_tensor_without_room_names_dev_shm(torch: Any, monkeypatch: Any) -> None:
    """torch moves a tensor that was shared by another of its strategies."""
    tensor = torch.zeros(LENGTH).share_memory_()

    def full(storage: Any) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    with pytest.raises(MemoryLimitError, match=r"0\.1 MiB: .*No space left.*/dev/shm, which has [\d,.]+ MiB free"):
        Sent(tensor)


def test_the_memory_of_a_device_is_refused(torch: Any) -> None:
    class Storage:
        device = torch.device("cuda:1")

    with pytest.raises(CannotSendError, match="cuda:1"):
        pickler._reduce_storage(Storage(), MappedFiles(), [])


@pytest.mark.leaves_behind("torch keeps what it opened of the GPU")
def test_cuda_tensors_go_by_their_handle(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
    tensor = torch.zeros(3, device="cuda")
    written = pickler.write({"it": tensor, "weights": torch.nn.Parameter(tensor)}, None, io.BytesIO())
    assert not written.large
    assert written.lent[0] is tensor
    with pytest.raises(CannotSendError, match="cuda:0"):
        Sent(tensor.untyped_storage())


# Other libraries


def test_arrow_and_pandas_go_beside_the_pickle() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": np.arange(LENGTH * 2), "b": ["x"] * LENGTH * 2})
    sent = Sent(table)
    assert sent.value.equals(table)
    assert sum(sent.mapped) > 10 * sent.pickled
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(LENGTH), "b": np.ones(LENGTH)})
    sent = Sent(frame)
    pd.testing.assert_frame_equal(sent.value, frame)
    assert sent.pickled < 10_000
