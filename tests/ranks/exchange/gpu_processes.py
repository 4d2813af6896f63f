"""Functions that run in the processes of tests with a rank per GPU.

They are in a module of their own, since a started process finds functions by module name.
"""

import ctypes
import gc
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from support.cases.core_runner import GPU, Columns, core, on_gpu

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
from gpu_ranks import Ranks  # noqa: E402


def on_gpus(count):
    missing = pytest.mark.skipif(core.num_devices() < count, reason=f"needs {count} NVIDIA GPUs")
    return [*on_gpu, missing]


# Pairs of a number of ranks and how they exchange: threads that share a GPU, or a GPU for each.
RANKS_OF_THREADS = [
    pytest.param(count, "threads", marks=on_gpus(1), id=f"{count}-threads") for count in (2, 3)
]
RANKS_OF_GPUS = [
    pytest.param(count, how, marks=on_gpus(count), id=f"{count}-{how}")
    for count in (1, 2, 4)
    for how in ("nccl", "peer_buffers")
]
NUM_RANKS = [pytest.param(count, marks=on_gpus(count)) for count in (1, 2, 4)]
_ranks = {}


def run_ranks(num_ranks, function, *args):
    """Returns the results of each rank. Processes are kept for the next call: CUDA takes seconds to
    start."""
    ranks = _ranks.get(num_ranks)
    if ranks is None or not ranks.are_alive:
        ranks = _ranks[num_ranks] = Ranks(num_ranks)
    return ranks.run(function, *args)


def close_ranks():
    while _ranks:
        _, ranks = _ranks.popitem()
        ranks.close()


class ThreadOfRanks:
    """A rank that is a thread and shares a GPU with others, as functions of ranks take it."""

    def __init__(self, communicator):
        self.rank, self.num_ranks = communicator.rank, communicator.num_ranks
        self.communicator = communicator


def run(num_ranks, how, function, *args):
    """`function(meeting, how, *args)` of each rank: a thread for each, or a process."""
    if how != "threads":
        return run_ranks(num_ranks, function, how, *args)
    with ThreadPoolExecutor(num_ranks) as threads:
        ranks = [
            threads.submit(function, ThreadOfRanks(communicator), how, *args)
            for communicator in core.thread_communicators(num_ranks)
        ]
        return [rank.result() for rank in ranks]


def make_communicator(meeting, how, timeout_seconds=60):
    """`how`: "nccl" sends rows, "peer_buffers" has ranks write them into each other's memory,
    "threads" share a GPU."""
    if how == "threads":
        return meeting.communicator
    core.set_device(meeting.rank)
    (nccl_id, *_) = meeting.all_gather("id", core.nccl_id() if meeting.rank == 0 else b"")
    return core.nccl_communicator(
        nccl_id,
        meeting.rank,
        meeting.num_ranks,
        timeout_seconds,
        use_peer_memory=how == "peer_buffers",
    )


def shared_memory(meeting, how):
    """The lines of this process's map of memory that are shared with ranks of its host."""
    communicator = make_communicator(meeting, how)
    maps = Path("/proc/self/maps").read_text().splitlines()
    del communicator
    return [line for line in maps if "/dev/shm/group_embedding_" in line]


def send_bytes_around(meeting, how, sizes, num_calls):
    """The bytes that this rank received in `num_calls` calls of sizes [num_ranks from, num_ranks
    to]."""
    communicator = make_communicator(meeting, how)
    return exchange(communicator, sizes, num_calls, GPU.to_device)


def exchange(communicator, sizes, num_calls, to_device):
    rank = communicator.rank
    received = []
    for call in range(num_calls):
        of_call = np.roll(sizes, call, axis=1)
        send = to_device(
            np.concatenate([message(rank, to, call, n) for to, n in enumerate(of_call[rank])])
        )
        receive = to_device(np.zeros(max(1, of_call[:, rank].sum()), np.uint8))
        communicator.all_to_all(send, list(of_call[rank]), receive, list(of_call[:, rank]))
        communicator.wait()
        if call % max(1, num_calls // 4) == 0:
            received.append((call, receive.numpy() if hasattr(receive, "numpy") else receive))
    return received


def message(source, target, call, num_bytes):
    """The bytes that a rank sends to another; never empty, as arrays on a GPU cannot be empty."""
    first = 7 * source + 3 * target + call
    return (np.arange(num_bytes) * 31 + first).astype(np.uint8)


def wait_for_one_that_does_not_come(meeting, how):
    """The error of rank 0 after a second call that rank 1 did not make."""
    communicator = make_communicator(meeting, how, timeout_seconds=2)
    send, receive = device(np.zeros(2, np.uint8)), device(np.zeros(2, np.uint8))

    def call():
        communicator.all_to_all(send, [1, 1], receive, [1, 1])
        communicator.wait()

    call()
    said = ""
    if meeting.rank == 0:
        try:
            call()
        except RuntimeError as error:
            said = str(error)
    meeting.all_gather("told", b"")
    return said


def lose_a_rank_in_a_step(meeting, case, batch):
    """This rank's error and its duration in seconds, when the last rank looked up but sent no
    gradients."""
    run = ShardedRun(meeting, "peer_buffers", case, timeout_seconds=2)
    run.step(batch)
    is_lost = meeting.rank == meeting.num_ranks - 1
    said, start = "", time.monotonic()
    try:
        run.step(batch, updates=not is_lost)
    except RuntimeError as error:
        said = str(error)
    took = time.monotonic() - start
    meeting.all_gather("told", b"")
    return said, took


def device(array):
    return GPU.to_device(np.asarray(array))


def first_slots(tables, rule):
    """Adagrad's sums for each table: one a row where the rule is row-wise."""
    return [np.full_like(t[:, 0] if rule == "rowwise_adagrad" else t, 0.1) for t in tables]


class ShardedRun:
    """One rank of a training on tables spread over the ranks."""

    rule = "rowwise_adagrad"

    def __init__(self, meeting, how, case, timeout_seconds=60, memory=None):
        self.memory = memory
        self.case, self.rank, self.num_ranks = case, meeting.rank, meeting.num_ranks
        self.communicator = (
            core.local_communicator()
            if how == "local"
            else make_communicator(meeting, how, timeout_seconds)
        )
        shards = [self.part_of(t, table) for t, table in enumerate(case.tables)]
        self.tables = [device(shard) for shard in shards]
        self.slots = [[device(slot)] for slot in first_slots(shards, self.rule)]

    def step(self, batch, updates=True):
        """Outputs before the step; the gradient of an output is itself."""
        allocate = GPU.allocate if self.memory is None else self.memory.begin_step()
        outputs = [device(np.full(shape, np.nan, np.float32)) for shape in batch.output_shapes]
        group = core.Group(
            tables=self.tables, outputs=self.own_columns(outputs), ids=device(batch.ids),
            row_splits=device(batch.row_splits),
            weights=None if batch.weights is None else device(batch.weights),
            table_of_feature=self.case.table_of_feature, combiners=self.case.combiners,
            max_norms=self.case.max_norms, allocate=allocate)  # fmt: skip
        sharded = self.lookup_of(group, [len(table) for table in self.case.tables], allocate)
        sharded.lookup()
        sharded.check()
        looked_up = [output.numpy() for output in outputs]
        if not updates:
            return looked_up
        update = core.Update(group, rule=self.rule, slots=self.slots, hyper=hyper())
        sharded.update(update)
        sharded.check()
        return looked_up

    def part_of(self, t, table):
        return table[self.rank :: self.num_ranks]

    def own_columns(self, outputs):
        return outputs

    def lookup_of(self, group, num_rows, allocate):
        return core.sharded_lookup(
            group, num_rows, self.communicator, allocate, self.case.description,
            self.case.comm_dtype
        )  # fmt: skip


BY_COLUMNS, BY_ROWS = -1, -2  # owners of a table, beside the rank that has all of it


class SumsRun(ShardedRun):
    """One rank of a training on tables whose owners, case.owners, combine rows."""

    rule = "adagrad"

    def part_of(self, t, table):
        part = part_of_rank(table, self.owner_of(t), self.rank, self.num_ranks)
        return part if part.size else table[:1]  # an array on a GPU cannot be empty

    def own_columns(self, outputs):
        views = []
        for output, t in zip(outputs, self.case.table_of_feature):
            dim = self.case.tables[t].shape[1] // self.num_ranks
            is_by_columns = self.owner_of(t) == BY_COLUMNS
            begin = self.rank * dim
            views.append(Columns(output, begin, begin + dim) if is_by_columns else output)
        return views

    def lookup_of(self, group, num_rows, allocate):
        return core.sums_lookup(
            group, num_rows, [self.owner_of(t) for t in range(len(num_rows))], self.communicator,
            allocate, self.case.description, self.case.comm_dtype
        )  # fmt: skip

    def owner_of(self, t):
        owner = self.case.owners[t]
        return owner if owner < 0 else owner % self.num_ranks


def part_of_rank(table, owner, rank, num_ranks):
    """A rank's part of a table."""
    if owner == BY_ROWS:
        return table[rank::num_ranks]
    if owner == BY_COLUMNS:
        return np.ascontiguousarray(np.split(table, num_ranks, axis=1)[rank])
    return table if owner % num_ranks == rank else table[:0]


def hyper():
    values = {"apply": 1, "gradient_scale": 1, "clip_value": np.inf, "learning_rate": 0.1,
              "epsilon": 1e-7}  # fmt: skip
    return device(np.array([values.get(name, 0) for name in core.hyper_names], np.float32))


def train(meeting, how, case, batches, kind=ShardedRun):
    """This rank's lookups in each step, and its final rows of each table."""
    run = kind(meeting, how, case)
    looked_up = []
    for of_ranks in batches:
        looked_up.append(run.step(of_ranks[meeting.rank]))
    return looked_up, [table.numpy() for table in run.tables]


def count_sent(meeting, how, case, batches, kind=ShardedRun):
    """The bytes that this rank has sent to each rank, after each step."""
    run, sent = kind(meeting, how, case), []
    for of_ranks in batches:
        run.step(of_ranks[meeting.rank])
        sent.append(run.communicator.sent_bytes)
    return sent


def count_sent_by_sums(meeting, how, case, batches):
    """Does what `count_sent` does, with tables whose owners combine rows."""
    return count_sent(meeting, how, case, batches, SumsRun)


class KeptMemory:
    """An allocator that keeps the memory of a step for the next step."""

    def __init__(self):
        self.arrays, self.used = {}, Counter()

    def allocate(self, num_bytes):
        kept = self.arrays.setdefault(num_bytes, [])
        self.used[num_bytes] += 1
        if self.used[num_bytes] > len(kept):
            kept.append(GPU.allocate(num_bytes))
        return kept[self.used[num_bytes] - 1]

    def begin_step(self):
        """Returns the step's allocation function."""
        self.used.clear()
        return self.allocate


@contextmanager
def little_memory(but):
    """The GPU has so many free bytes and no more."""
    driver = ctypes.CDLL("libcuda.so.1")
    free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    blocks, size = [], free.value
    while size >= but:
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        size = min(size, free.value - but)
        if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0:
            blocks.append(address.value)
        else:
            size //= 2
    try:
        yield
    finally:
        for block in blocks:
            driver.cuMemFree_v2(ctypes.c_uint64(block))


def train_in_little_memory(meeting, case, batches):
    """Trains with a first batch, and then with a larger one for whose peer buffer the last rank's
    GPU has no memory; returns why there were no peer buffers, in either step, too."""
    memory = KeptMemory()
    ShardedRun(meeting.part("before"), "nccl", case, memory=memory).step(batches[1][meeting.rank])
    run = ShardedRun(meeting, "peer_buffers", case, memory=memory)
    looked_up, lacks = [run.step(batches[0][meeting.rank])], [run.communicator.lack_of_peer_memory]
    is_last = meeting.rank == meeting.num_ranks - 1
    gc.collect()  # of what nobody has, nothing is to be freed from here on
    with little_memory(but=64 << 20) if is_last else nullcontext():
        looked_up.append(run.step(batches[1][meeting.rank]))
    lacks.append(run.communicator.lack_of_peer_memory)
    return looked_up, [table.numpy() for table in run.tables], lacks


def train_by_sums(meeting, how, case, batches):
    """Does what `train` does, with tables whose owners combine rows."""
    return train(meeting, how, case, batches, SumsRun)


def bad_ids_by_sums(meeting, how, case, bad, good):
    """This rank's errors of a lookup in which rank 0 has `bad`, and what it looks up next."""
    run, told = SumsRun(meeting, how, case), []
    try:
        run.step(bad if meeting.rank == 0 else good)
    except (RuntimeError, ValueError) as error:
        told.append(str(error))
    return told, run.step(good)


def look_up_after_another(meeting, cases, batches):
    """The error of a rank that looked up another case than the others; then a lookup of the first
    case by all ranks."""
    told = ""
    try:
        ShardedRun(meeting.part("other"), "nccl", cases[meeting.rank]).step(batches[meeting.rank])
    except RuntimeError as error:
        told = str(error)
    run = ShardedRun(meeting.part("same"), "nccl", cases[0])
    return told, run.step(batches[0])
