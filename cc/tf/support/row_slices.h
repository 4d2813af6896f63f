// The rows of many tables as inputs and outputs of ops, in the form of exchange/host/pack_rows.h.
#pragma once

#include <vector>

#include "exchange/host/pack_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/group_attrs.h"

namespace group_embedding {

// The tables of an op, as its attributes say.
struct RowTypes {
  std::vector<tensorflow::DataType> dtypes;
  std::vector<DataType> wire;  // in which rows travel
  bool has_indices;            // rows may be absent

  // Attributes `dtypes_name`, wire, num_indices.
  absl::Status Read(tensorflow::OpKernelConstruction* context, const char* dtypes_name);

  size_t size() const { return dtypes.size(); }
};

// counts: [ranks, num_tables], numbers of rows whose bytes a computer has.
absl::Status CheckCounts(const char* name, const tensorflow::Tensor& counts, size_t num_tables);

absl::Status CheckDims(const std::vector<int32_t>& dims);

// Views of all these.
RowParts MakeParts(const tensorflow::Tensor& counts, const std::vector<int32_t>& dims,
                   const std::vector<DataType>& wire);

// Inputs: rows of each table from the first on, then their indices. `dims` gets each table's.
absl::Status ReadSlices(tensorflow::OpKernelContext* context, const RowTypes& types,
                        const tensorflow::Tensor& counts, std::vector<int32_t>* dims,
                        std::vector<RowSlices>* slices);

// Outputs: the same. `present`: [ranks, num_tables] how many rows there will be.
absl::Status AllocateSlices(tensorflow::OpKernelContext* context, const RowTypes& types,
                            const RowParts& parts, const int64_t* present,
                            std::vector<RowSlices>* slices);

}  // namespace group_embedding
