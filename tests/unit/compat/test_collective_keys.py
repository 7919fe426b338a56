"""Which keys collectives get."""

import types

from tf_adasum.compat.tensorflow.collective_keys import KEYS_OF_A_SIGNATURE, ReusingLauncher


def test_no_two_signatures_of_a_generation_share_a_key():
    """All workers choose the same keys, in the order in which they first use a signature."""

    def keys(generation, signatures):
        launcher = ReusingLauncher.__new__(ReusingLauncher)
        launcher._reuse = types.SimpleNamespace(is_on=True, generation=generation)
        launcher._made, launcher._generation = {}, 0
        return [int(launcher._key_of(("reduce", "float32", each))) for each in signatures]

    many = [each for each in range(300) for _ in range(KEYS_OF_A_SIGNATURE)]
    made = keys(1, many)
    assert len({*made, *keys(2, many)}) == 2 * len(many)
    assert keys(1, many) == made and keys(1, [7, 7, 8]) == made[:2] + made[8:9]
