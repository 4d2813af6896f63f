#include "bindings/nccl_ids.h"

#if GROUP_EMBEDDING_CUDA
#include <string>

#include "exchange/transport/nccl_communicator.h"
#endif

namespace group_embedding {

namespace py = pybind11;

#if GROUP_EMBEDDING_CUDA

namespace {

using py::literals::operator""_a;

std::string PciBusId(int device) {
  Status status;
  std::string id = PciBusIdOf(device, &status);
  Require(status);
  return id;
}

py::bytes NcclId() {
  Status status;
  const std::string id = MakeNcclId(&status);
  Require(status);
  return id;
}

}  // namespace

void BindNcclIds(py::module_& m) {
  m.attr("has_cuda") = true;
  m.def("pci_bus_id", &PciBusId, "device"_a, "What tells a GPU of this host from the others.");
  m.def("nccl_id", &NcclId,
        "What the ranks of one NCCL communicator have in common: bytes that one of them makes and "
        "hands to the others.");
}

#else

void BindNcclIds(py::module_& m) { m.attr("has_cuda") = false; }

#endif

}  // namespace group_embedding
