"""The ways in which the collective benchmark's ranks come by rows of other ranks."""


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
    comm_dtype = "float32"

    def __init__(self, core, meeting):
        self.core, self.communicator = core, make_communicator(core, meeting)

    def make_group(self, group, workload):
        return self.core.exchanged_group(
            group, workload.rows, self.communicator, allocate, workload.name, self.comm_dtype
        )


class NcclInHalf(Nccl):
    """Rows and gradients travel in 16 bits."""

    comm_dtype = "bfloat16"


class Peers:
    def __init__(self, core, meeting):
        self.core, self.meeting = core, meeting

    def make_tables(self, workload, local_rows):
        import torch

        w, num_ranks = workload, self.meeting.num_ranks
        self.offsets, end = [], self.core.PeerMemory.reserved_bytes
        for rows, dim in zip(w.rows, w.dims):
            self.offsets.append(end)
            end += -(-(-(-rows // num_ranks) * dim * 4) // 256) * 256
        self.room = end
        room_bytes = self.core.peer_room_bytes(w.rows, w.dims, num_ranks, w.num_ids)
        self.memory = self.core.PeerMemory(end + room_bytes)
        handles = self.meeting.all_gather("handles", self.memory.handle)
        self.ranks = self.core.PeerRanks(self.meeting.rank, self.memory, handles)
        tables = []
        for rows, dim, offset in zip(local_rows, w.dims, self.offsets):
            array = self.core.PeerArray(self.memory, offset, [rows, dim], "<f4")
            tables.append(torch.as_tensor(array, device="cuda").normal_())
        return tables

    def make_group(self, group, workload):
        return self.core.peer_group(
            group, workload.rows, self.ranks, self.offsets, self.room, workload.num_ids, allocate
        )


def make_communicator(core, meeting):
    (nccl_id, *_) = meeting.all_gather("nccl_id", core.nccl_id() if meeting.rank == 0 else b"")
    return core.nccl_communicator(nccl_id, meeting.rank, meeting.num_ranks)


WAYS = {"one GPU": OneGpu, "nccl": Nccl, "nccl, bfloat16": NcclInHalf, "peers": Peers}
