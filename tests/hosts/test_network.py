"""Hosts whose names and addresses are not as they should be: ranks find each other all the same, or
end with an error that says which host and what to do."""

import os
import time
from pathlib import Path

import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge

LAYOUTS = by_day(["ab", "aabb", "abc"], ["aabb"], nightly=["ab", "abc"])
RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"


def look_up():
    ge.enable_distributed_strategy(timeout_seconds=10)
    table = ge.get_embedding_variable("user", 2, initializer=tf.ones_initializer())
    (rows,) = ge.group_embedding_lookup([table], [tf.range(5, dtype=tf.int64)])
    return rows.numpy().tolist()


def look_up_without_launcher(go):
    """A launch like that of mpirun and Slurm, without the launcher's address. Waits for the file
    `go` until it asks for names."""
    import horovod.tensorflow as hvd

    hvd.init()
    hvd.allreduce(tf.zeros([1]), name="all are connected")
    print("Horovod is there")
    while not Path(go).exists():
        time.sleep(0.02)
    del os.environ[RENDEZVOUS]
    return look_up()


def fail_in_a_function():
    """Rank 1 raises in an op of a function."""
    ge.enable_distributed_strategy(timeout_seconds=10)
    tables = [ge.TableConfig(name, 9, 3) for name in ("user", "item")]
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig(table.name, table) for table in tables])

    @tf.function
    def step(ids, age):
        tf.debugging.assert_less(age, 200, "no such age")
        return layer({"user": ids, "item": ids})

    is_wrong = ge.exchange.current().rank == 1
    for age in (3, 999 if is_wrong else 3, 3):
        step(tf.constant([[1], [2]], tf.int64), tf.constant(age))


@pytest.fixture
def look_up_with_names(make_bed, start_job, tmp_path):
    """Starts `look_up_without_launcher` on hosts that know these names, from when Horovod has
    started on. A function: (where, names of all hosts) -> `Job`."""

    def start(where, with_all):
        bed = make_bed(len(set(where)))
        go = tmp_path / "go"
        job = start_job(bed, where, look_up_without_launcher, str(go))
        job.wait_until_all_said("Horovod is there")
        for host in bed.hosts.values():  # its own name as Debian has it
            own = f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n"
            host.hosts_file.write_text(own + (bed.names() if with_all else ""))
        go.touch()
        return job

    return start


@pytest.mark.slow
@pytest.mark.parametrize("where", LAYOUTS)
def test_a_name_of_the_loopback_is_not_given_to_other_hosts(look_up_with_names, where):
    ranks = look_up_with_names(where, with_all=True).results()

    assert ranks == [[[1.0, 1.0]] * 5] * len(where)


def test_a_host_without_an_address_is_told_what_to_set(look_up_with_names):
    outcomes = look_up_with_names("ab", with_all=False).outcomes()

    for code, _, output in outcomes:
        assert code == 1
        assert "ConnectionError: host a: expected an address by which the other hosts" in output
        assert f"set {RENDEZVOUS} on all ranks to the address of host a" in output


@pytest.mark.soak
@pytest.mark.parametrize(
    "environment, names, error",
    [
        ({}, "127.0.0.1 localhost\n", "host b: its own name does not resolve"),
        (
            {"HOROVOD_GLOO_IFACE": "eth7"},
            None,
            "host b: expected HOROVOD_GLOO_IFACE to be one of its network interfaces, lo, eth0, "
            "got 'eth7'",
        ),
        ({RENDEZVOUS: "launcher"}, None, f"host b: expected {RENDEZVOUS} to be an address"),
    ],
    ids=["own_name", "interface", "launcher"],
)
def test_a_name_that_does_not_resolve(make_bed, start_job, environment, names, error):
    bed = make_bed(2)
    if names is not None:
        for host in bed.hosts.values():
            host.hosts_file.write_text(names)

    outcomes = start_job(bed, "ab", look_up, environment=environment).outcomes()

    assert [outcome.code for outcome in outcomes] == [1, 1]
    assert f"ConnectionError: {error}" in outcomes[1].output


def test_gloo_is_not_given_the_loopback(make_bed, start_job):
    bed = make_bed(2)
    for host in bed.hosts.values():
        host.hosts_file.write_text(f"127.0.1.1 {host.name}\n{bed.names()}")

    outcomes = start_job(bed, "ab", look_up).outcomes()

    for host, (code, _, output) in zip(bed.hosts.values(), outcomes):
        assert code == 1
        assert f"host {host.name}: its own name resolves to 127.0.1.1" in output


@pytest.mark.parametrize("where", LAYOUTS)
def test_the_other_hosts_are_told_what_an_op_in_a_function_raised(make_bed, start_job, where):
    bed = make_bed(len(set(where)))

    outcomes = start_job(bed, where, fail_in_a_function).outcomes()

    for rank, (code, _, output) in enumerate(outcomes):
        assert code not in (0, "timed out"), output
        if rank != 1:
            told = [line for line in output.splitlines() if " raised InvalidArgument" in line]
            assert told and "rank 1 (process" in told[0] and f"of {where[1]})" in told[0], output
            assert "InvalidArgumentError: assertion failed: [no such age]" in told[0], told
