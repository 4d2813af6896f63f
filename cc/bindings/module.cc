// group_embedding._native: what the package calls of the core from Python.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"

PYBIND11_MODULE(_native, m) {
  m.doc() = "Files of checkpoints and of published versions, and the ids of NCCL communicators.";
  group_embedding::BindAll(m);
}
