// All bindings of this folder, for the package's module and for that of the tests.
#pragma once

#include "bindings/nccl_ids.h"
#include "bindings/section_file.h"
#include "bindings/table_file.h"
#include "bindings/table_file_writer.h"
#include "table/budget.h"

namespace group_embedding {

inline void BindAll(pybind11::module_& m) {
  BindTableFile(m);
  BindTableFileWriter(m);
  BindSectionFile(m);
  BindNcclIds(m);
  m.def("store_bytes", &StoreBytes, pybind11::arg("max_bytes"),
        "The part of a table's budget that is for the memory of a store of rows on disk.");
}

}  // namespace group_embedding
