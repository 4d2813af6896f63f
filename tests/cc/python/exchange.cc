#include "python/exchange.h"

#include <pybind11/stl.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "exchange/transport/local_communicator.h"
#include "python/array.h"

#if GROUP_EMBEDDING_CUDA
#include "exchange/transport/nccl_communicator.h"
#include "exchange/transport/peer_buffers.h"
#include "exchange/transport/peer_communicator.h"
#include "python/run.h"
#include "python/thread_communicator.h"
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

std::string LackOfPeerMemory(Communicator& communicator) {
#if GROUP_EMBEDDING_CUDA
  if (communicator.peer_buffers() != nullptr) return communicator.peer_buffers()->lack().message();
#endif
  return "ranks of this communicator write into no memory but their own";
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
      .def("abort", &Communicator::Abort, "reason"_a)
      .def_property_readonly("sent_bytes", &Communicator::SentBytes,
                             "Bytes of lookups that this rank has sent to each rank.")
      .def_property_readonly(
          "lack_of_peer_memory", &LackOfPeerMemory,
          "Why ranks could not have the peer buffers that an exchange asked for last, "
          "and sent each other its rows instead; empty: they could.");
  m.def("local_communicator", &MakeLocalCommunicator, "A Communicator of one rank.");
}

#if GROUP_EMBEDDING_CUDA

std::unique_ptr<Communicator> NcclRank(const std::string& id, int rank, int num_ranks,
                                       double timeout_seconds, bool use_peer_memory) {
  py::gil_scoped_release release;
  Status status;
  std::unique_ptr<Communicator> communicator =
      MakeNcclCommunicator(id, rank, num_ranks, timeout_seconds, &status);
  Require(status);
  if (use_peer_memory) {
    communicator = UsePeerMemory(std::move(communicator), timeout_seconds, nullptr, &status);
    Require(status);
  }
  return communicator;
}

py::list ThreadRanks(int num_ranks, double timeout_seconds) {
  py::list communicators;
  for (auto& made : MakeThreadCommunicators(num_ranks, timeout_seconds)) {
    communicators.append(py::cast(std::move(made)));
  }
  return communicators;
}

void BindGpuExchange(py::module_& m) {
  m.def(
      "set_device", [](int device) { CheckCuda(cudaSetDevice(device), "set_device"); }, "device"_a,
      "The GPU on which what this thread makes from now on will be.");
  m.def("nccl_communicator", &NcclRank, "id"_a, "rank"_a, "num_ranks"_a, "timeout_seconds"_a = 60.0,
        "use_peer_memory"_a = false,
        "A Communicator of ranks with a GPU each, made by all of them together. use_peer_memory: "
        "on one "
        "host, where they write into each other's memory what they would send; RuntimeError where "
        "they cannot.");
  m.def("thread_communicators", &ThreadRanks, "num_ranks"_a, "timeout_seconds"_a = 60.0,
        "A Communicator for each of several ranks that are threads of this process, on one GPU.");
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
