#include "tf/support/row_slices.h"

#include <algorithm>
#include <string>

#include "tf/support/shared_buffer.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

int64_t SumOver(const int64_t* of_ranks, int64_t num_ranks, int64_t num_tables, int64_t table) {
  int64_t sum = 0;
  for (int64_t n = 0; n < num_ranks; ++n) sum += of_ranks[n * num_tables + table];
  return sum;
}

bool AreAscendingBelow(const int64_t* indices, int64_t count, int64_t end) {
  bool ascending = true;
  for (int64_t i = 0; ascending && i < count; ++i) {
    ascending = indices[i] > (i == 0 ? -1 : indices[i - 1]) && indices[i] < end;
  }
  return ascending;
}

absl::Status AllocateRows(OpKernelContext* context, const RowTypes& types,
                          const std::vector<TensorShape>& shapes, std::vector<void*>* rows) {
  const auto differs = [&](tensorflow::DataType dtype) { return dtype != types.dtypes[0]; };
  if (std::none_of(types.dtypes.begin(), types.dtypes.end(), differs)) {
    return AllocateOutputsTogether(context, 0, types.dtypes[0], shapes, rows);
  }
  for (size_t t = 0; t < shapes.size(); ++t) {
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(t), shapes[t], &output));
    rows->push_back(output->data());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RowTypes::Read(tensorflow::OpKernelConstruction* context, const char* dtypes_name) {
  std::vector<tensorflow::DataType> wire_types;
  int num_indices;
  TF_RETURN_IF_ERROR(context->GetAttr(dtypes_name, &dtypes));
  TF_RETURN_IF_ERROR(context->GetAttr("wire", &wire_types));
  TF_RETURN_IF_ERROR(context->GetAttr("num_indices", &num_indices));
  for (const tensorflow::DataType type : wire_types) wire.push_back(ToCore(type));
  has_indices = num_indices > 0;
  if (wire.size() == size() && (!has_indices || num_indices == static_cast<int>(size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("wire, indices: expected one per table");
}

absl::Status CheckCounts(const char* name, const Tensor& counts, size_t num_tables) {
  if (counts.dims() != 2 || counts.dim_size(1) != static_cast<int64_t>(num_tables)) {
    return absl::InvalidArgumentError(std::string(name) + ": expected shape [ranks, " +
                                      std::to_string(num_tables) + "], got " +
                                      counts.shape().DebugString());
  }
  constexpr int64_t kMaxRows = int64_t{1} << 40;
  const auto rows = counts.flat<int64_t>();
  int64_t left = kMaxRows;
  for (int64_t i = 0; i < rows.size(); left -= rows(i++)) {
    if (rows(i) >= 0 && rows(i) <= left) continue;
    return absl::InvalidArgumentError(std::string(name) + ": expected numbers of rows, together " +
                                      "up to 2^40, got " + std::to_string(rows(i)) + " of table " +
                                      std::to_string(i % num_tables) + " for rank " +
                                      std::to_string(i / num_tables));
  }
  return absl::OkStatus();
}

absl::Status CheckDims(const std::vector<int32_t>& dims) {
  for (size_t t = 0; t < dims.size(); ++t) {
    if (dims[t] >= 1 && dims[t] <= kMaxDim) continue;
    return absl::InvalidArgumentError("table " + std::to_string(t) + ": expected 1 <= dim <= " +
                                      std::to_string(kMaxDim) + ", got " + std::to_string(dims[t]));
  }
  return absl::OkStatus();
}

RowParts MakeParts(const Tensor& counts, const std::vector<int32_t>& dims,
                   const std::vector<DataType>& wire) {
  return {counts.flat<int64_t>().data(), dims.data(), wire.data(), counts.dim_size(0),
          static_cast<int64_t>(dims.size())};
}

absl::Status ReadSlices(OpKernelContext* context, const RowTypes& types, const Tensor& counts,
                        std::vector<int32_t>* dims, std::vector<RowSlices>* slices) {
  const int num_tables = static_cast<int>(types.size());
  for (int t = 0; t < num_tables; ++t) {
    const Tensor& rows = context->input(t);
    const int64_t expected =
        SumOver(counts.flat<int64_t>().data(), counts.dim_size(0), num_tables, t);
    const std::string which = "rows[" + std::to_string(t) + "]: expected ";
    if (rows.dims() != 2 || rows.dim_size(1) > kMaxDim ||
        (!types.has_indices && rows.dim_size(0) != expected)) {
      return absl::InvalidArgumentError(which + std::to_string(expected) +
                                        " rows, as counts says, got shape " +
                                        rows.shape().DebugString());
    }
    int64_t* indices = nullptr;
    if (types.has_indices) {
      const Tensor& given = context->input(num_tables + t);
      indices = static_cast<int64_t*>(given.data());
      if (given.NumElements() != rows.dim_size(0) ||
          !AreAscendingBelow(indices, rows.dim_size(0), expected)) {
        return absl::InvalidArgumentError(which + "an index for each, ascending and below " +
                                          std::to_string(expected));
      }
    }
    dims->push_back(static_cast<int32_t>(rows.dim_size(1)));
    slices->push_back(
        {rows.data(), ToCore(types.dtypes[t]), !types.has_indices, indices, rows.dim_size(0)});
  }
  return CheckDims(*dims);
}

absl::Status AllocateSlices(OpKernelContext* context, const RowTypes& types, const RowParts& parts,
                            const int64_t* present, std::vector<RowSlices>* slices) {
  const int num_tables = static_cast<int>(types.size());
  std::vector<TensorShape> shapes;
  for (int t = 0; t < num_tables; ++t) {
    const int64_t num_rows = SumOver(present, parts.num_ranks, num_tables, t);
    if (!types.has_indices && num_rows != SumOver(parts.counts, parts.num_ranks, num_tables, t)) {
      return absl::InvalidArgumentError("packed: expected all rows, got some");
    }
    shapes.push_back(TensorShape({num_rows, parts.dims[t]}));
  }
  std::vector<void*> rows;
  TF_RETURN_IF_ERROR(AllocateRows(context, types, shapes, &rows));
  for (int t = 0; t < num_tables; ++t) {
    int64_t* indices = nullptr;
    if (types.has_indices) {
      Tensor* output;
      const TensorShape shape({shapes[t].dim_size(0)});
      TF_RETURN_IF_ERROR(context->allocate_output(num_tables + t, shape, &output));
      indices = output->flat<int64_t>().data();
    }
    slices->push_back(
        {rows[t], ToCore(types.dtypes[t]), !types.has_indices, indices, shapes[t].dim_size(0)});
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
