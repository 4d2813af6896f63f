"""The transports by which ranks of the collective benchmark get rows of other ranks."""


def allocate(num_bytes):
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


class OneGpu:
    """No exchange: the fused functions of one process."""

    def __init__(self, core, meeting):
        del core, meeting

    def make_tables(self, workload, local_rows):
        import torch

        return [torch.randn(r, d, device="cuda") for r, d in zip(local_rows, workload.dims)]

    def make_group(self, group, workload):
        del workload
        return _Fused(group)


class _Fused:
    bytes_on_the_wire = 0

    def __init__(self, group):
        self.group = group

    def lookup(self, stream):
        self.group.lookup(stream)

    def update(self, update, stream):
        update.run(stream)

    def check(self, stream):
        self.group.check(stream)


class Nccl(OneGpu):
    comm_dtype, use_peer_memory = "float32", False

    def __init__(self, core, meeting):
        self.core = core
        self.communicator = make_communicator(core, meeting, self.use_peer_memory)

    def make_group(self, group, workload):
        return self.core.sharded_lookup(
            group, workload.rows, self.communicator, allocate, workload.name, self.comm_dtype
        )


class NcclInHalf(Nccl):
    """Rows and gradients are sent in 16 bits."""

    comm_dtype = "bfloat16"


class PeerMemory(Nccl):
    """Ranks write rows and gradients into each other's memory."""

    use_peer_memory = True


class PeerMemoryInHalf(PeerMemory):
    comm_dtype = "bfloat16"


def make_communicator(core, meeting, use_peer_memory=False):
    (nccl_id, *_) = meeting.all_gather("nccl_id", core.nccl_id() if meeting.rank == 0 else b"")
    return core.nccl_communicator(
        nccl_id, meeting.rank, meeting.num_ranks, use_peer_memory=use_peer_memory
    )


TRANSPORTS = {
    "one GPU": OneGpu,
    "nccl": Nccl,
    "nccl, bfloat16": NcclInHalf,
    "peer_memory": PeerMemory,
    "peer_memory, bfloat16": PeerMemoryInHalf,
}
