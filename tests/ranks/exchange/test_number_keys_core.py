"""Keys as numbers that rows can be routed by, against NumPy."""

import numpy as np
import pytest
from support.cases.core_runner import GPU, core, on_gpu

pytestmark = [pytest.mark.gpu, *on_gpu]
MIN, MAX = -(2**63), 2**63 - 1


def owners_of(keys, num_ranks):
    """cc/core/owner.h."""
    x = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(32)) * np.uint64(num_ranks) >> np.uint64(32)).astype(np.int64)


def expected_of(features, ids, num_tables, num_ranks):
    numbers, keys, first_keys = ids.copy(), [], [0]
    for owner in range(num_ranks):
        for table in range(num_tables):
            ranges = [slice(begin, begin + n) for begin, n, of in features if of == table]
            of_table = np.concatenate([ids[r] for r in ranges]) if ranges else ids[:0]
            mine = of_table[owners_of(of_table, num_ranks) == owner]
            part = np.unique(mine.astype(np.uint64))
            for r in ranges:
                is_mine = owners_of(ids[r], num_ranks) == owner
                places = np.searchsorted(part, ids[r][is_mine].astype(np.uint64))
                numbers[r][is_mine] = places * num_ranks + owner
            keys.append(part.astype(np.int64))
            first_keys.append(first_keys[-1] + len(part))
    return numbers, np.concatenate(keys), first_keys


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("num_ids", [0, 1, 40, 30_000])
def test_keys_are_numbered_by_owner_table_and_key(num_ranks, num_ids):
    # Given features with keys of three of four tables, two of one, one empty, and one with ids
    print("seed 5")
    random = np.random.default_rng(5)
    known = np.append(random.integers(MIN, MAX, 1 + num_ids // 3), [0, -1, MIN, MAX])
    ids = random.choice(known, 4 * num_ids)
    features = [
        (0, num_ids, 2),
        (num_ids, num_ids, 0),
        (2 * num_ids, 0, 3),
        (3 * num_ids, num_ids, 2),
    ]
    # When they are numbered
    found = core.number_keys(features, GPU.to_device(np.append(ids, 7)), 4, num_ranks)
    # Then numbers, keys and parts are those of NumPy, and other ids are as they were
    for got, expected in zip(found, expected_of(features, np.append(ids, 7), 4, num_ranks)):
        np.testing.assert_array_equal(got, expected)
