"""Random bits from pieces: in range, never twice, and none of a parent's in a child."""

import os

from kimi_gateway.entropy import Entropy


def test_bits_are_in_range_and_use_all_of_it() -> None:
    entropy = Entropy()
    for count in (1, 7, 8, 16, 53, 80, 128):
        found = [entropy.bits(count) for _ in range(200)]
        assert all(0 <= value < 1 << count for value in found)
        assert max(found) >= 1 << (count - 1), "the highest bit is set at times"


def test_no_piece_is_given_out_twice_over_many_refills() -> None:
    entropy = Entropy()
    found = [entropy.bits(128) for _ in range(2000)]
    assert len(set(found)) == len(found)


def test_more_than_a_piece_can_be_had_at_once() -> None:
    assert Entropy().bits(8 * 10_000).bit_length() > 8 * 9_990


def test_a_forked_child_has_bits_of_its_own() -> None:
    entropy = Entropy()
    entropy.bits(8)  # a piece is there, which the child must not go on with
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, entropy.bits(128).to_bytes(16, "big"))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int.from_bytes(os.read(read, 16), "big")
    os.close(read)
    os.close(write)
    assert theirs != entropy.bits(128)
