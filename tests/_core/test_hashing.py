from __future__ import annotations

import numpy as np

from stoker._core.hashing import hashes, mixed

# A change of one of these changes the order of epochs that models were trained with.
GOLDEN = {
    0: [13013912499580732898, 2558736989570252433, 6424680343470555127, 10774728993895758192],
    1: [12100477452831230990, 12793040940332582595, 13927038297489047698, 15441945887411553116],
    2**64 - 1: [6439281475881623082, 18159682518515982810, 9203901244115317815, 4793382263962266820],
}
NUMBERS = np.array([0, 1, 2**40, 2**62])


def test_the_values_never_change() -> None:
    assert {key: hashes(key, NUMBERS).tolist() for key in GOLDEN} == GOLDEN


def test_hashes_are_the_stream_of_splitmix64() -> None:
    # The first numbers of the reference implementation for the seed 1234567 (prng.di.unimi.it/splitmix64.c).
    step = 0x9E3779B97F4A7C15
    assert [mixed(1234567 + step * (i + 1)) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    start = mixed(mixed(5 + step) + step)
    assert hashes(5, np.arange(3)).tolist() == [mixed(start + step * i) for i in range(3)]


def test_keys_are_taken_modulo_2_to_the_64() -> None:
    numbers = np.arange(4)
    assert np.array_equal(hashes(-1, numbers), hashes(2**64 - 1, numbers))
    assert numbers.tolist() == [0, 1, 2, 3]
    assert np.array_equal(hashes(3, numbers), hashes(3, numbers.astype(np.uint64)))


def test_bits_of_keys_and_numbers_side_by_side_are_independent() -> None:
    """Each bit of the difference of two neighbours, in number or in key, is set in half of all cases."""
    block = np.stack([hashes(key, np.arange(256)) for key in range(257)])
    for differences in (block[1:] ^ block[:-1], block[:, 1:] ^ block[:, :-1]):
        set_bits = [int((differences >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)]
        assert np.abs(np.array(set_bits) - differences.size / 2).max() < 6 * np.sqrt(differences.size) / 2


def test_numbers_of_any_size_are_taken_modulo_two_to_the_64th() -> None:
    large = np.array([2**64 + 3, -1, 2**200 + 7, -(2**70) - 2], object)
    assert np.array_equal(hashes(5, large), hashes(5, np.array([3, 2**64 - 1, 7, 2**64 - 2], np.uint64)))
