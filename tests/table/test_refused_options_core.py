"""Options that no table can have are refused by the core, whoever gives them."""

import pytest

core = pytest.importorskip("support.core")

BLOOM = {"admission": "bloom", "min_count": 3, "num_counters": 100, "num_hashes": 4}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dim": 0}, "dim: expected 1 to 4096, got 0"),
        ({"dim": -1}, "dim: .*got -1"),
        ({"dim": 2**31 - 1}, "dim: .*got 2147483647"),
        ({"max_bytes": -1}, "bytes of a tier: .*got -1"),
        ({"max_bytes": 2**62}, "bytes of a tier: .*got 4611686018427387904"),
        ({"admission": "counter", "min_count": -1}, "times that a key must be trained.*got -1"),
        ({**BLOOM, "counter_bytes": 0}, "bytes of a counter.*expected 1, 2, 4 or 8, got 0"),
        ({**BLOOM, "counter_bytes": 16}, "bytes of a counter.*got 16"),
        ({**BLOOM, "num_counters": 0}, "counters of the Bloom filter.*got 0"),
        ({**BLOOM, "num_counters": -5}, "counters of the Bloom filter.*got -5"),
        ({**BLOOM, "num_counters": 2**60}, "counters of the Bloom filter.*as many as memory holds"),
        ({**BLOOM, "num_hashes": 0}, "hashes of the Bloom filter: expected 1 to 64, got 0"),
        ({**BLOOM, "num_hashes": 1000}, "hashes of the Bloom filter: .*got 1000"),
        (
            {**BLOOM, "min_count": 256, "counter_bytes": 1},
            "times that a counter .*must count to: .*0 to 255, got 256",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_disk", [False, True], ids=["DRAM", "DRAM_SSDHASH"])
def test_refused(options, message, has_disk):
    if has_disk:
        options = {"max_bytes": 1 << 20, "disk": core.DiskTier(), **options}
    with pytest.raises(RuntimeError, match=f"table 'user', {message}"):
        core.HostTable(**{"dim": 4, "distribution": "constant", "name": "user", **options})


def test_a_disk_of_a_negative_size():
    disk = core.DiskTier(max_bytes=-1)
    with pytest.raises(RuntimeError, match="table 'user', bytes of a tier: expected 0 to .*got -1"):
        core.HostTable(dim=4, distribution="constant", name="user", max_bytes=1 << 20, disk=disk)
