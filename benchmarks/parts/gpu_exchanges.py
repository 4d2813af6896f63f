"""The transports by which ranks of the collective benchmark get rows of other ranks."""

BY_ROWS = -2  # an owner of core.sums_lookup


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


class Sums(Nccl):
    """Owners combine rows and send sums. The table with most ids has some rows on each rank, others
    are whole on one: each on the rank that has fewest ids so far, those with most ids first."""

    use_peer_memory = True

    def make_tables(self, workload, local_rows):
        import torch

        self.owners, ranks = self._place(workload), self.communicator
        tables = []
        for t, (owner, dim) in enumerate(zip(self.owners, workload.dims)):
            whole = workload.rows[t] if owner == ranks.rank else 1  # one that is not looked up
            rows = local_rows[t] if owner == BY_ROWS else whole
            tables.append(torch.randn(rows, dim, device="cuda"))
        return tables

    def make_group(self, group, workload):
        return self.core.sums_lookup(
            group, workload.rows, self.owners, self.communicator, allocate, workload.name,
            self.comm_dtype
        )  # fmt: skip

    def _place(self, workload):
        by_ids = sorted(range(len(workload.rows)), key=lambda t: -workload.hotness[t])
        ids, owners = [0] * self.communicator.num_ranks, {}
        for t in by_ids:
            is_hot = workload.hotness[t] * len(ids) > sum(workload.hotness) / 2
            owners[t] = BY_ROWS if is_hot else ids.index(min(ids))
            if not is_hot:
                ids[owners[t]] += workload.hotness[t]
        return [owners[t] for t in range(len(workload.rows))]


class SumsInHalf(Sums):
    comm_dtype = "bfloat16"


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
    "sums": Sums,
    "sums, bfloat16": SumsInHalf,
}
