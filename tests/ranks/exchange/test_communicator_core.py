"""The contract of every communicator: the local one on any machine; NCCL, with and without peer
buffers, with a GPU for each rank."""

import numpy as np
import pytest
from ranks.exchange import gpu_processes
from ranks.exchange.gpu_processes import NUM_RANKS, message, on_gpus, run_ranks
from support.cases.core_runner import CPU, GPU, core

SIZES = {
    "uneven": [[3, 70_001, 9, 0], [12, 5, 1, 1], [0, 0, 2, 0], [7, 8, 9, 10]],
    "empty": [[0] * 4] * 4,
    "one_way": [[0, 4096, 0, 1], [0] * 4, [0] * 4, [0] * 4],
    "large": [[1, 40_000_000, 5, 6], [39_999_999, 2, 3, 4], [1] * 4, [0] * 4],
}


def check(received, sizes, rank):
    for call, got in received:
        of_call = np.roll(sizes, call, axis=1)
        expected = [message(n, rank, call, of_call[n, rank]) for n in range(len(sizes))]
        np.testing.assert_array_equal(got[: of_call[:, rank].sum()], np.concatenate(expected))


@pytest.mark.parametrize("num_bytes", [0, 1, 70_001])
def test_one_rank_gets_what_it_sends(num_bytes):
    # Given the communicator of one rank
    communicator = core.local_communicator()
    on_gpu = core.has_cuda and core.num_devices() > 0
    # When it sends itself bytes
    sizes = np.array([[num_bytes]])
    received = gpu_processes.exchange(communicator, sizes, 3, (GPU if on_gpu else CPU).to_device)
    # Then it has them
    check(received, sizes, 0)


def test_sizes_that_cannot_be_are_refused():
    # Given the communicator of one rank
    communicator = core.local_communicator()
    # When it should receive from itself what it does not send, then it says so
    with pytest.raises(RuntimeError, match="expected as many bytes to receive as are sent, 2, got"):
        communicator.all_to_all(np.zeros(2, np.uint8), [2], np.zeros(3, np.uint8), [3])


def test_arrays_too_small_are_refused():
    # Given the communicator of one rank
    communicator = core.local_communicator()
    # When more is to be sent than there is, then it says so
    with pytest.raises(ValueError, match="send: expected at least 9 bytes, got 2"):
        communicator.all_to_all(np.zeros(2, np.uint8), [9], np.zeros(9, np.uint8), [9])


def test_an_aborted_communicator_says_why():
    # Given the communicator of one rank, aborted
    communicator = core.local_communicator()
    communicator.abort("the job ends")
    # When it is used, then it tells
    with pytest.raises(RuntimeError, match="the job ends"):
        communicator.wait()


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("how", ["nccl", "peer_buffers"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_rank_gets_its_bytes(num_ranks, how, sizes):
    # Given sizes for each pair of ranks
    sizes = np.array(sizes)[:num_ranks, :num_ranks]
    # When ranks call all-to-all with them
    received = run_ranks(num_ranks, gpu_processes.send_bytes_around, how, sizes, 4)
    # Then each has what the others sent it
    for rank in range(num_ranks):
        check(received[rank], sizes, rank)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("how", ["nccl", "peer_buffers"])
def test_many_calls_in_a_row(num_ranks, how):
    # Given sizes that change from call to call
    sizes = np.array([[100, 3000, 1, 8], [0, 17, 0, 5], [9] * 4, [0] * 4])[:num_ranks, :num_ranks]
    # When ranks make 2,000 calls
    received = run_ranks(num_ranks, gpu_processes.send_bytes_around, how, sizes, 2000)
    # Then each has what the others sent it
    for rank in range(num_ranks):
        check(received[rank], sizes, rank)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("how", ["nccl", "peer_buffers"])
def test_ranks_that_have_met_leave_no_shared_memory_behind(num_ranks, how):
    # When ranks have met, and may end in any way
    shared = run_ranks(num_ranks, gpu_processes.shared_memory, how)
    # Then the memory that they share has no name any more
    for of_rank in shared:
        assert of_rank and all(line.endswith("(deleted)") for line in of_rank)


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=on_gpus(2)) for how in ("nccl", "peer_buffers")]
)
def test_a_rank_that_does_not_come_is_named(how):
    # Given two ranks, of which one makes fewer calls than the other
    # When the other waits for it
    told, _ = run_ranks(2, gpu_processes.wait_for_one_that_does_not_come, how)
    # Then its error after the time-out names the missing rank
    assert "waited for rank 1" in told
