#include "python/exchange.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "exchange/local_communicator.h"
#include "python/array.h"
#include "python/run.h"

#if GROUP_EMBEDDING_CUDA
#include "exchange/exchanged_group.h"
#include "exchange/nccl_communicator.h"
#include "exchange/peer_group.h"
#include "python/update.h"
#endif

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

void AllToAll(Communicator& communicator, py::object send, const std::vector<int64_t>& send_bytes,
              py::object receive, const std::vector<int64_t>& receive_bytes, uintptr_t stream) {
  const auto pointer = [&](py::object array, const char* name, const std::vector<int64_t>& sizes) {
    RequireCount(std::string(name) + "_bytes", communicator.num_ranks(), sizes.size());
    const ArrayView view = ViewArray(array, name);
    RequireContiguous(view);
    const int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (view.num_items() * view.item_bytes() < bytes) {
      throw py::value_error(std::string(name) + ": expected at least " + std::to_string(bytes) +
                            " bytes, got " + std::to_string(view.num_items() * view.item_bytes()));
    }
    return view.data;
  };
  const void* from = pointer(send, "send", send_bytes);
  void* to = pointer(receive, "receive", receive_bytes);
  py::gil_scoped_release release;
  Require(communicator.AllToAll(from, send_bytes.data(), to, receive_bytes.data(),
                                reinterpret_cast<Stream>(stream)));
}

void BindCommunicators(py::module_& m) {
  py::class_<Communicator>(m, "Communicator", R"(How the ranks of a job send each other bytes.

All ranks make the same calls in the same order. An error, RuntimeError, is the communicator's end.)")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("num_ranks", &Communicator::num_ranks)
      .def("all_to_all", &AllToAll, "send"_a, "send_bytes"_a, "receive"_a, "receive_bytes"_a,
           "stream"_a = 0,
           "Sends send_bytes[n] bytes to rank n and receives receive_bytes[n] from it; those of "
           "rank "
           "0 lie first in both arrays.")
      .def(
          "wait",
          [](Communicator& communicator, uintptr_t stream) {
            py::gil_scoped_release release;
            Require(communicator.Wait(reinterpret_cast<Stream>(stream)));
          },
          "stream"_a = 0, "Waits until all that was enqueued has ended; not beyond the time-out.")
      .def("abort", &Communicator::Abort, "reason"_a);
  m.def("local_communicator", &MakeLocalCommunicator, "A Communicator of one rank.");
}

#if GROUP_EMBEDDING_CUDA

std::string PciBusId(int device) {
  char id[32];
  CheckCuda(cudaDeviceGetPCIBusId(id, sizeof(id), device), "pci_bus_id");
  return id;
}

py::bytes NcclId() {
  std::string error;
  const std::string id = MakeNcclId(&error);
  Require(error);
  return id;
}

std::unique_ptr<Communicator> NcclRank(const std::string& id, int rank, int num_ranks,
                                       double timeout_seconds) {
  py::gil_scoped_release release;
  std::string error;
  std::unique_ptr<Communicator> communicator =
      MakeNcclCommunicator(id, rank, num_ranks, timeout_seconds, &error);
  Require(error);
  return communicator;
}

// Part of a PeerMemory, as other libraries see it.
class PeerArray {
 public:
  PeerArray(py::object memory, int64_t offset, const std::vector<int64_t>& shape,
            const std::string& type)
      : memory_(std::move(memory)), shape_(shape), type_(type) {
    const PeerMemory& peer_memory = memory_.cast<const PeerMemory&>();
    ArrayView view;
    view.type = type.substr(1);
    view.shape = shape;
    bytes_ = view.num_items() * view.item_bytes();
    if (offset < PeerMemory::kReservedBytes || offset + bytes_ > peer_memory.bytes()) {
      throw py::value_error("PeerArray: expected one within bytes [" +
                            std::to_string(PeerMemory::kReservedBytes) + ", " +
                            std::to_string(peer_memory.bytes()) + "), got " +
                            std::to_string(offset) + " to " + std::to_string(offset + bytes_));
    }
    data_ = peer_memory.data() + offset;
  }

  py::dict interface() const {
    py::dict interface;
    interface["shape"] = py::tuple(py::cast(shape_));
    interface["typestr"] = type_;
    interface["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(data_), false);
    interface["version"] = 3;
    return interface;
  }

  void Assign(py::object array) {
    const ArrayView view = ViewArray(array, "array", type_.substr(1), shape_.size(), false);
    RequireShape(view, shape_);
    RequireContiguous(view);
    CheckCuda(cudaMemcpy(data_, view.data, bytes_, cudaMemcpyHostToDevice), "PeerArray");
    CheckCuda(cudaDeviceSynchronize(), "PeerArray");
  }

  py::object ToHost() const {
    py::object array =
        py::module_::import("numpy").attr("empty")(py::tuple(py::cast(shape_)), type_);
    CheckCuda(cudaDeviceSynchronize(), "PeerArray");
    CheckCuda(cudaMemcpy(ViewArray(array, "array").data, data_, bytes_, cudaMemcpyDeviceToHost),
              "PeerArray");
    return array;
  }

 private:
  py::object memory_;  // kept alive
  std::vector<int64_t> shape_;
  std::string type_;
  int64_t bytes_;
  char* data_;
};

// Pieces of host memory that the GPU reaches, by name, kept until the end.
class PageLockedScratch {
 public:
  void* Get(const std::string& name, int64_t bytes) {
    Piece& piece = pieces_[name];
    if (piece.bytes < bytes) {
      void* memory = nullptr;
      CheckCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "page-locked memory");
      piece = {{memory, cudaFreeHost}, bytes};
    }
    return piece.memory.get();
  }

 private:
  struct Piece {
    std::unique_ptr<void, cudaError_t (*)(void*)> memory{nullptr, cudaFreeHost};
    int64_t bytes = 0;
  };
  std::map<std::string, Piece> pieces_;
};

// A ShardedGroup with what it borrows.
class PyShardedGroup {
 public:
  PyShardedGroup(py::object group, std::vector<int64_t> num_rows, py::object allocate)
      : group_object_(std::move(group)),
        num_rows_(std::move(num_rows)),
        scratch_(std::move(allocate), /*on_gpu=*/true),
        fault_(&scratch_) {
    RequireCount("num_rows", py_group().tables().size(), num_rows_.size());
  }

  void Exchange(py::object communicator, const std::string& description, DataType comm_type) {
    exchange_object_ = communicator;
    CheckShards(communicator.cast<Communicator&>().rank(),
                communicator.cast<Communicator&>().num_ranks());
    auto exchanged = std::make_unique<ExchangedGroup>(Whole(), &communicator.cast<Communicator&>(),
                                                      description, comm_type, Memory());
    exchanged_ = exchanged.get();
    sharded_ = std::move(exchanged);
  }

  void Reach(py::object ranks, const std::vector<int64_t>& table_offsets, int64_t room_offset,
             int64_t max_ids) {
    exchange_object_ = ranks;
    peer_ranks_ = &ranks.cast<PeerRanks&>();
    CheckShards(peer_ranks_->rank(), peer_ranks_->num_ranks());
    RequireCount("table_offsets", num_rows_.size(), table_offsets.size());
    auto peers = std::make_unique<PeerGroup>(Whole(), peer_ranks_, table_offsets, room_offset,
                                             max_ids, Memory());
    peers_ = peers.get();
    sharded_ = std::move(peers);
  }

  void Lookup(uintptr_t stream) {
    sharded_->Lookup(fault_.pointer(), reinterpret_cast<cudaStream_t>(stream));
  }

  void Update(const PyUpdate& update, uintptr_t stream) {
    sharded_->Update(update.get(), reinterpret_cast<cudaStream_t>(stream));
  }

  void Check(uintptr_t stream) {
    const Fault fault = fault_.Take(stream);
    if (peer_ranks_ != nullptr) Require(peer_ranks_->Error());
    if (fault.kind == FaultKind::kNone) return;
    const int32_t table = py_group().features()[fault.feature].table;
    throw py::value_error(
        Describe(fault, std::to_string(fault.feature), std::to_string(table), num_rows_[table]));
  }

  // Of the last Lookup and Update.
  int64_t BytesOnTheWire() const {
    return exchanged_ != nullptr ? exchanged_->sent_bytes()
                                 : peers_->fetched_bytes() + peers_->read_gradient_bytes();
  }

 private:
  PyGroup& py_group() const { return group_object_.cast<PyGroup&>(); }

  void CheckShards(int rank, int num_ranks) const {
    for (size_t t = 0; t < num_rows_.size(); ++t) {
      const int64_t expected = (num_rows_[t] - rank + num_ranks - 1) / num_ranks;
      if (py_group().tables()[t].num_rows != expected) {
        throw py::value_error(At("tables", t) + ": expected the " + std::to_string(expected) +
                              " rows of rank " + std::to_string(rank) + ", got " +
                              std::to_string(py_group().tables()[t].num_rows));
      }
    }
  }

  Group Whole() {
    tables_ = py_group().tables();
    for (size_t t = 0; t < tables_.size(); ++t) tables_[t].num_rows = num_rows_[t];
    Group whole = py_group().group();
    whole.tables = tables_.data();
    return whole;
  }

  ShardedGroup::Memory Memory() {
    return {
        [this](const std::string& name, int64_t bytes) { return scratch_.Get(name, bytes); },
        [this](const std::string& name, int64_t bytes) { return page_locked_.Get(name, bytes); }};
  }

  py::object group_object_, exchange_object_;  // kept alive
  const std::vector<int64_t> num_rows_;
  std::vector<Table> tables_;
  Scratch scratch_;
  PageLockedScratch page_locked_;
  DeviceFault fault_;
  PeerRanks* peer_ranks_ = nullptr;
  ExchangedGroup* exchanged_ = nullptr;
  PeerGroup* peers_ = nullptr;
  std::unique_ptr<ShardedGroup> sharded_;
};

std::unique_ptr<PyShardedGroup> ExchangedGroupOf(py::object group, std::vector<int64_t> num_rows,
                                                 py::object communicator, py::object allocate,
                                                 const std::string& description,
                                                 const std::string& comm_dtype) {
  auto sharded = std::make_unique<PyShardedGroup>(group, std::move(num_rows), allocate);
  sharded->Exchange(communicator, description, ParseDataType("comm_dtype", comm_dtype));
  return sharded;
}

std::unique_ptr<PyShardedGroup> PeerGroupOf(py::object group, std::vector<int64_t> num_rows,
                                            py::object ranks,
                                            const std::vector<int64_t>& table_offsets,
                                            int64_t room_offset, int64_t max_ids,
                                            py::object allocate) {
  auto sharded = std::make_unique<PyShardedGroup>(group, std::move(num_rows), allocate);
  sharded->Reach(ranks, table_offsets, room_offset, max_ids);
  return sharded;
}

int64_t PeerRoomBytes(const std::vector<int64_t>& num_rows, const std::vector<int32_t>& dims,
                      int num_ranks, int64_t max_ids, const std::string& dtype) {
  RequireCount("dims", num_rows.size(), dims.size());
  std::vector<Table> tables;
  for (size_t t = 0; t < dims.size(); ++t) tables.push_back({nullptr, num_rows[t], dims[t], 0});
  Group group = {};
  group.tables = tables.data();
  group.num_tables = static_cast<int64_t>(tables.size());
  group.dtype = ParseDataType("dtype", dtype);
  return PeerRoom(group, num_ranks, max_ids).bytes;
}

void BindGpuExchange(py::module_& m) {
  m.def(
      "set_device", [](int device) { CheckCuda(cudaSetDevice(device), "set_device"); }, "device"_a,
      "The GPU on which what this thread makes from now on will be.");
  m.def("pci_bus_id", &PciBusId, "device"_a, "What tells a GPU of this host from the others.");
  m.def("nccl_id", &NcclId,
        "What the ranks of one NCCL communicator have in common: bytes that one "
        "of them makes and hands to the others.");
  m.def("nccl_communicator", &NcclRank, "id"_a, "rank"_a, "num_ranks"_a, "timeout_seconds"_a = 60.0,
        "A Communicator of ranks with a GPU each, made by all of them together.");
  py::class_<PeerMemory>(m, "PeerMemory", "GPU memory that all ranks of a host read and write.")
      .def(py::init<int64_t>(), "num_bytes"_a)
      .def_readonly_static("reserved_bytes", &PeerMemory::kReservedBytes)
      .def_property_readonly("handle",
                             [](const PeerMemory& memory) { return py::bytes(memory.Handle()); });
  py::class_<PeerArray>(m, "PeerArray", "An array in a PeerMemory, from a byte on.")
      .def(py::init<py::object, int64_t, const std::vector<int64_t>&, const std::string&>(),
           "memory"_a, "offset"_a, "shape"_a, "typestr"_a)
      .def_property_readonly("__cuda_array_interface__", &PeerArray::interface)
      .def("assign", &PeerArray::Assign, "array"_a, "Waits for the GPU and copies a NumPy array.")
      .def("numpy", &PeerArray::ToHost, "Waits for the GPU and copies to a new NumPy array.");
  py::class_<PeerRanks>(m, "PeerRanks", "The ranks of a host as they see each other's PeerMemory.")
      .def(py::init<int, const PeerMemory*, const std::vector<std::string>&, double>(), "rank"_a,
           "memory"_a, "handles"_a, "timeout_seconds"_a = 60.0, py::keep_alive<1, 3>())
      .def(
          "barrier",
          [](PeerRanks& ranks, uintptr_t stream) {
            CheckCuda(ranks.EnqueueBarrier(reinterpret_cast<cudaStream_t>(stream)), "barrier");
          },
          "stream"_a = 0)
      .def(
          "check", [](const PeerRanks& ranks) { Require(ranks.Error()); },
          "RuntimeError, once a barrier that has ended waited for a rank in vain.");
  py::class_<PyShardedGroup>(m, "ShardedGroup", R"(A Group whose tables are spread over ranks.

The group's tables are this rank's rows: row r of a table is row r // num_ranks of rank r % num_ranks.
All ranks call lookup, and then update, together.)")
      .def("lookup", &PyShardedGroup::Lookup, "stream"_a = 0)
      .def("update", &PyShardedGroup::Update, "update"_a, "stream"_a = 0,
           "After lookup, once the outputs hold their gradients: updates this rank's rows.")
      .def("check", &PyShardedGroup::Check, "stream"_a = 0,
           "Waits for the stream; ValueError if a lookup met a bad id, RuntimeError if a rank is "
           "gone.")
      .def_property_readonly("bytes_on_the_wire", &PyShardedGroup::BytesOnTheWire);
  m.def("exchanged_group", &ExchangedGroupOf, "group"_a, "num_rows"_a, "communicator"_a,
        "allocate"_a, "description"_a, "comm_dtype"_a,
        "A ShardedGroup whose rows travel through a Communicator, in comm_dtype. num_rows: of the "
        "whole tables. description: what all ranks must have in common; lookup raises RuntimeError "
        "where they differ.");
  m.def("peer_group", &PeerGroupOf, "group"_a, "num_rows"_a, "ranks"_a, "table_offsets"_a,
        "room_offset"_a, "max_ids"_a, "allocate"_a,
        "A ShardedGroup whose ranks read each other's PeerMemory. Its tables begin there at "
        "table_offsets, and peer_room_bytes are its own from room_offset on, on every rank.");
  m.def("peer_room_bytes", &PeerRoomBytes, "num_rows"_a, "dims"_a, "num_ranks"_a, "max_ids"_a,
        "dtype"_a = "float32",
        "For groups of such tables, whole, and batches of at most so many ids on each rank.");
}

#endif

}  // namespace

void BindExchange(py::module_& m) {
  BindCommunicators(m);
#if GROUP_EMBEDDING_CUDA
  BindGpuExchange(m);
#endif
}

}  // namespace group_embedding
