"""`enable_distributed_strategy`: from one process to the ranks that horovodrun launched."""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import math
import os
import sys

import tensorflow as tf

from group_embedding.annotations import DTypeLike
from group_embedding.placement import check_placement
from group_embedding.ranks.distributed.distributed_saver import install_saver
from group_embedding.ranks.distributed.saved_whole import keep_slots_whole
from group_embedding.ranks.distributed.single_rank_files import refuse_files_of_one_rank
from group_embedding.ranks.distributed.stock_estimators import let_estimators_export_whole
from group_embedding.ranks.exchange.active import of_process, set_current
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.exchange.liveness import Watch
from group_embedding.ranks.exchange.local import LocalExchange
from group_embedding.ranks.exchange.nccl import form_nccl_ranks
from group_embedding.ranks.sharding.make_sharded_table import when_table_is_made

STRATEGIES = ("collective",)
MIN_TIMEOUT = 3.0  # seconds; ranks are heard of each second
GLOO_SECONDS = 30  # by which Gloo waits longer than the watch; Gloo's own timeout
COMM_DTYPES = (tf.float32, tf.float16, tf.bfloat16)
HOROVOD_INSTALL = (
    "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 "
    "HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO "
    "{python} -m pip install --no-build-isolation horovod==0.28.1"
)
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"

_watches = []  # that of this process, once there are other ranks


def enable_distributed_strategy(
    strategy: str = "collective",
    *,
    placement: str = "distributed",
    comm_dtype: DTypeLike | None = None,
    ahead: bool = False,
    timeout_seconds: float = 30.0,
) -> None:
    """Shards the tables made from now on over the ranks of this job.

    Call it first, on every rank, before TensorFlow has touched a GPU. Then

    * the embedding columns of `ge.group_embedding_column_scope` and the tables of
      `ge.layers.GroupEmbedding` are sharded by row: rank r holds the rows r, r + N, ...; those of
      `ge.get_embedding_variable` by key;
    * group lookups on them take each rank's own part of the batch, and return its own samples;
    * `ge.DistributedOptimizer` and `ge.Saver` know which variables are sharded.

    In a process that `horovodrun` did not launch, there is one rank and nothing is sharded. Where a
    host has several, each gets its part of the cores as threads for the insides of ops, unless
    TF_NUM_INTRAOP_THREADS or `tf.config.threading` says how many, or TensorFlow has started before.
    A second call changes nothing.

    What ranks of one host send each other between CPUs goes through memory that they share, which
    is nowhere in /dev/shm; what ranks of different hosts do, over one TCP connection for each pair
    of ranks, on ports that the system chooses. Where a host does not let its ranks share memory,
    they are connected, too, and a warning says why. Without GPUs, Horovod only launches the ranks:
    its own thread wakes every 10 ms on one host, and every second on several, where each time sends
    packets. So the cores and the network are the training's. A collective of Horovod's that the
    script itself calls may take two such waits; HOROVOD_CYCLE_TIME, or an `hvd.init()` before, says
    otherwise.

    With GPUs, each rank of a host takes one. A `tf.compat.v1.Session` that is given a config needs
    it there too: `config.gpu_options.visible_device_list = str(hvd.local_rank())`; one without a
    config has it, as has `ge.CollectiveStrategy.estimator`. If all ranks have a GPU of their own,
    and NCCL is there (`pip install nvidia-nccl-cu12`, or the system's), tables in GPU memory that
    are spread by row number, or by key in a call without weights, exchange ids, rows and gradients
    through it, in one op each way; all others go as without GPUs. GPUs of one host that reach each
    other's memory write rows and gradients there, into peer buffers beside TensorFlow's memory:
    half as large again as what the largest batch so far brings a rank, and those that became too
    small.
    With NCCL_P2P_DISABLE=1, or where there is no memory for them, NCCL sends. Such ops run in the
    order in which they were made, so make them in the same order on all ranks; in a graph of
    TensorFlow 1, running one runs those made before it.

    Ranks watch over each other: when one dies, is stopped or raises, the others print which and why
    and end with exit code 1, within `timeout_seconds` and some seconds more, instead of waiting for
    it. (Under Horovod Elastic they go on: see `ge.run_elastic`.) Ranks that wait for each other in
    different calls, as where one makes a table or a lookup more, all print which rank waits in
    which, and end, once they have waited for half of `timeout_seconds`; so do ranks that wait for
    one whose program has ended. A rank that computes, and waits in no call, may take its time.
    Where two hosts do not reach each other for `timeout_seconds`, though both reach rank 0, all
    ranks print a rank of each host, and end. (Under Horovod Elastic, those of one of the two end.)

    Args:
        strategy: 'collective', by Horovod.
        placement: where tables are that are not placed one by one. 'distributed': on all ranks, by
            row number or by the hash of keys. `'localized:<rank>'`: on one. 'replicated': each rank
            has all rows, which start as those of rank 0, and gradients are gathered; not for
            keys, which are then distributed. 'distributed:sums', `'localized:<rank>:sums'`: the
            same places, and for each sample an owner sends the sum of its rows instead of the rows:
            for samples of many ids, of tables in host memory. 'distributed:two_levels',
            `'localized:<rank>:two_levels'`: the same places, and a row crosses once to each host,
            whose ranks share it, instead of once to each rank: for rows that many ranks look up, of
            tables in host memory. 'columns', 'columns:sums': each rank
            has as many columns of all rows, of tables in host memory; keys are distributed then,
            too. 'auto': planned for tables that are
            made together, by a layer or a column scope; the plan is printed. (A table made alone is
            distributed.)
        comm_dtype: `tf.float16` or `tf.bfloat16`: rows and their gradients are sent in it, and
            added in float32. None: the table's dtype. (Through the host, a rank's own rows are
            rounded to it too. On GPUs they are read in their table, in its dtype.)
        ahead: the next batch's rows are fetched while a step trains, and those that it changes
            again after it: the same bits. `fit` of `ge.training.Model` then takes each batch a step
            early, and so does `over` of `ge.training.make_step`; `ge.route_ids` and `layer.route`
            fetch rows where a program routes ids ahead. For tables of one dtype in host memory; of
            others, and between GPUs, ids alone go ahead.
        timeout_seconds: a rank that sends no sign of life for so long counts as hanging. A
            rank that computes sends them. Horovod's Gloo waits longer: see
            HOROVOD_GLOO_TIMEOUT_SECONDS. (Without effect on Gloo after an `hvd.init()`.)

    Raises:
        ValueError: another word, another dtype, or a time-out below 3 seconds.
        ImportError: Horovod is missing, or does not fit the installed TensorFlow.
        ConnectionError: hosts cannot reach each other by the names and addresses that they have;
            with the host and what to set.

    Example, run with `horovodrun -np 2 python train.py`:

    >>> ge.enable_distributed_strategy("collective")
    >>> optimizer = ge.DistributedOptimizer(tf.compat.v1.train.AdagradOptimizer(0.1))
    """
    if strategy not in STRATEGIES:
        choices = ", ".join(f"'{choice}'" for choice in STRATEGIES)
        raise ValueError(f"strategy: expected one of {choices}, got {strategy!r}")
    check_placement("enable_distributed_strategy", placement)
    if comm_dtype is not None:
        comm_dtype = _check_comm_dtype(comm_dtype)
    if not timeout_seconds >= MIN_TIMEOUT:
        raise ValueError(
            f"enable_distributed_strategy: expected timeout_seconds >= {MIN_TIMEOUT:g}, got "
            f"{timeout_seconds!r}"
        )
    if not isinstance(of_process(), LocalExchange):
        return
    horovod = _import_horovod_exchange()
    _lengthen_cycles()
    _lengthen_gloo_timeout(timeout_seconds)
    current = horovod.HorovodExchange()
    if current.ranks_of_host > 1:
        _share_cores(current.ranks_of_host)
    gpu = _take_one_gpu(current.local_rank, current.ranks_of_host)
    if current.num_ranks > 1:
        current = _join_by_messages(current, timeout_seconds)
        atexit.register(current.leave, "this process ends")
        _watch(current, timeout_seconds)
        let_estimators_export_whole()
    current.placement, current.comm_dtype, current.ahead = placement, comm_dtype, ahead
    current.nccl_ranks = form_nccl_ranks(current, gpu, timeout_seconds)
    set_current(current)
    for call in (install_saver, keep_slots_whole, refuse_files_of_one_rank):
        when_table_is_made(call)


def disable_distributed_strategy():
    """Ends the watch over the other ranks; tables made from now on are those of one process.

    `enable_distributed_strategy` may then be called again, as `ge.run_elastic` does.
    """
    if _watches:
        _watches.pop().close()
    of_process().close()
    set_current(LocalExchange())


def _join_by_messages(horovod, timeout_seconds):
    from group_embedding.ranks.exchange import message_exchange  # needs Horovod

    return message_exchange.join_by_messages(horovod, timeout_seconds)


def _watch(current, timeout_seconds):
    restarts = os.environ.get("HOROVOD_ELASTIC") == "1"
    gather = functools.partial(gather_text, current, name="watch")
    _watches.append(
        Watch(
            current.rank,
            current.num_ranks,
            timeout_seconds,
            restarts,
            gather,
            on_loss=current.end,
            pending=current.pending_calls,
        )
    )


def _check_comm_dtype(comm_dtype):
    names = [dtype.name for dtype in COMM_DTYPES]
    name = getattr(comm_dtype, "name", comm_dtype)
    if name not in names:
        raise ValueError(
            "enable_distributed_strategy: expected comm_dtype to be None or one of "
            f"{', '.join(names)}, got {comm_dtype!r}"
        )
    return tf.as_dtype(name)


def _import_horovod_exchange():
    try:
        return importlib.import_module("group_embedding.ranks.exchange.horovod")
    except ImportError as error:
        what = f"cannot be used with TensorFlow {tf.__version__} ({error})"
        if not _is_installed("horovod"):
            what = "is not installed"
        command = HOROVOD_INSTALL.format(python=sys.executable)
        raise ImportError(
            f"enable_distributed_strategy('collective'): Horovod {what}; install it with\n"
            f"    {command}\n"
            "(needs g++, cmake < 4 and the packages setuptools, wheel, packaging, cffi, "
            "cloudpickle, psutil and pyyaml; in the source tree, `make build` does it all)"
        ) from error


def _is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it stands in sys.modules as None: imports of it are barred
        return False


def _share_cores(num_ranks):
    """Gives this rank its part of the host's cores, unless the user says how many threads it has.

    Ranks wait for each other several times a step: with more threads than cores, for those that do
    not run just then."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, cores // num_ranks)))


def _lengthen_cycles():
    """Has Horovod's thread wake every 10 ms where all ranks are on one host, and every second where
    they are not, instead of every millisecond, unless the user says how often.

    Each time it asks the other ranks for news, which takes a core from those that compute, and
    sends packets to other hosts. Ranks without GPUs need no haste: messages carry what they
    exchange."""
    size, size_of_host = (os.environ.get(f"HOROVOD_{name}") for name in ("SIZE", "LOCAL_SIZE"))
    may_grow = os.environ.get("HOROVOD_ELASTIC") == "1"
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    if size is not None and not may_grow and not has_gpus:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "10" if size == size_of_host else "1000")


def _lengthen_gloo_timeout(timeout_seconds):
    """Lets Horovod's Gloo wait longer than the watch does: it gives up without the name of a
    rank."""
    given = os.environ.get(_GLOO_TIMEOUT, "")
    seconds = math.ceil(timeout_seconds) + GLOO_SECONDS
    if given.isdecimal() or not given:
        os.environ[_GLOO_TIMEOUT] = str(max(seconds, int(given or 0)))


def _take_one_gpu(local_rank, ranks_of_host):
    """Returns its index among the GPUs that CUDA shows this process, or None: there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    try:
        mine = gpus[local_rank % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        if ranks_of_host > 1:
            raise RuntimeError(
                "enable_distributed_strategy: expected to be called before TensorFlow uses a GPU, "
                f"so that each rank can take its own: {error}"
            ) from error
    return int(mine.name.rpartition(":")[2])
