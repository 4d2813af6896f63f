#include "python/exchange.h"

#include <pybind11/stl.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "exchange/local_communicator.h"
#include "python/array.h"

#if GROUP_EMBEDDING_CUDA
#include "exchange/nccl_communicator.h"
#include "exchange/peer_memory.h"
#include "python/run.h"
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
