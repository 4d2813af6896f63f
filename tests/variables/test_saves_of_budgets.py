"""Tables with a budget and a filter that are saved, in full and by changes, while they evict and
hand out: nothing is lost, and a restart goes on as the run would have."""

import numpy as np
import pytest
import tensorflow as tf
from variables.budget_tables import IN_TIERS, make, trainer

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

# A save of changes is a full one where more keys went since the last save than a table lists: in
# GPU memory those of one step here.
NUM_STEPS, FULL_SAVE, SAVE_OF_CHANGES = 12, 4, 5
FILTERS = [
    pytest.param({}, id="all"),
    pytest.param({"admit_after": 2}, id="counter"),
    pytest.param({"admit_after": 2, "expected_keys": 400_000, "counter_bits": 8}, id="bloom"),
    pytest.param({"admit_probability": 0.6}, id="chance"),
]
POLICY = {"budget_of": "rank", "keep_share": 0.8, "evict": "least_frequent", "safe_steps": 2}


def make_limited(name, tiers, limit, options):
    """A table with a limit of 120 keys, 80 of which are in each tier above another; or with one of
    bytes."""
    if limit == "max_keys":
        size, tier_bytes = 120, (80 + ("hbm" in tiers)) * (72 if "hbm" in tiers else 56)
    else:
        size = {"hbm": 60, "dram": 40}[tiers[0]] + 12 * ("disk" in tiers) << 20
        tier_bytes = (2 if "hbm" in tiers else 3) << 20
    lower = {"tier_bytes": [tier_bytes] * (len(tiers) - 1)} if len(tiers) > 1 else {}
    options = {limit: size, "hand_out": "rows", **POLICY, **lower, **options}
    return make(name, tiers, **options)


def content(table):
    """(keys, values, versions, freqs) of all keys, ascending."""
    return [of.numpy() for of in table.export()]


class Run:
    """A table that is trained, and whose evicted rows are taken after each step."""

    def __init__(self, table):
        self.table, self.train = table, trainer(table)
        self.checkpoint = tf.train.Checkpoint(table=table, optimizer=self.train.optimizer)

    def take_step(self, step, max_keys):
        """Returns the rows that are left and those that went, by key."""
        before = content(self.table)
        keys = np.arange(max_keys // 2) + step * (max_keys // 4)  # each comes in two steps
        again = np.arange(max_keys // 16) + (step % 3) * max_keys  # many went, and come again
        self.train(np.concatenate([keys, again]))
        left, taken = content(self.table), [of.numpy() for of in self.table.take_evicted()]
        evicted = [of[np.argsort(taken[0])] for of in taken]
        # Rows go as they were, once, and no other one is missing.
        gone = ~np.isin(before[0], left[0])
        assert_same(evicted, [of[gone] for of in before])
        return left, evicted


def assert_same(found, expected):
    for of, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(of, others)


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("limit", ["max_keys", "max_bytes"])
@pytest.mark.parametrize("options", FILTERS)
def test_a_restart_from_changes_goes_on_as_the_run_would_have(options, limit, tiers, tmp_path):
    # Given a run with a full save, and one of the changes after it
    run = Run(make_limited("user", tiers, limit, options))
    run.train([0])  # makes the optimizer's slot, which takes bytes, too
    max_keys = int(run.table.budget_counts().max_keys)
    steps = []
    for step in range(NUM_STEPS):
        steps.append(run.take_step(step, max_keys))
        if step == FULL_SAVE:
            run.checkpoint.save(str(tmp_path / "save"))
        if step == SAVE_OF_CHANGES:
            changes = ge.checkpoint.save_changes(run.checkpoint, str(tmp_path / "save"))
    (saved,) = files.tables(changes)
    assert [file["changes_only"] for file in saved["files"]] == [False, True]

    # When another table is restored from them
    again = Run(make_limited("again", tiers, limit, options))
    again.checkpoint.restore(changes)

    # Then it has the same rows, and each step leaves the same ones, and hands out the same ones
    assert_same(content(again.table), steps[SAVE_OF_CHANGES][0])
    assert len(again.table.take_evicted().keys) == 0
    for step in range(SAVE_OF_CHANGES + 1, NUM_STEPS):
        for found, expected in zip(again.take_step(step, max_keys), steps[step], strict=True):
            assert_same(found, expected)
    # And the run evicted in all of its parts, and missed none
    num_evicted = np.array([len(evicted[0]) for _, evicted in steps])
    assert min(of.sum() for of in np.split(num_evicted, [FULL_SAVE + 1, SAVE_OF_CHANGES + 1])) > 0
    assert [int(of.table.budget_counts().missed) for of in (run, again)] == [0, 0]
    assert int(run.table.budget_counts().evicted) == num_evicted.sum()
