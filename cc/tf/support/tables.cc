#include "tf/support/tables.h"

#include <utility>

#include "tf/support/handle_list.h"
#include "tf/support/plain_table.h"

namespace group_embedding {
namespace {

using ::tensorflow::Tensor;

absl::Status TableOfKeyed(tensorflow::OpKernelContext* context, const EmbeddingTableResource& keyed,
                          const GroupAttrs& attrs, size_t t, Table* table) {
  TF_RETURN_IF_ERROR(keyed.CheckInitialized());
  TF_RETURN_IF_ERROR(CheckReachable(context, *keyed.table()));
  TF_RETURN_IF_ERROR(
      CheckType(attrs.table_names[t], attrs.dtype, FromCore(keyed.table()->options().dtype)));
  *table = keyed.table()->rows();
  return CheckDim(attrs.table_names[t], attrs.dims[t], table->dim);
}

}  // namespace

absl::Status Tables::Find(tensorflow::OpKernelContext* context, const GroupAttrs& attrs,
                          const std::vector<int32_t>& keyed) {
  sources_.resize(attrs.dims.size());
  if (!keyed.empty()) {
    HandleList keyed_tables;
    TF_RETURN_IF_ERROR(keyed_tables.Open(context, "keyed_tables"));
    if (keyed_tables.size() != static_cast<int>(keyed.size())) {
      return absl::InvalidArgumentError("keyed: expected one for each of keyed_tables");
    }
    for (size_t i = 0; i < keyed.size(); ++i) {
      if (keyed[i] < 0 || keyed[i] >= static_cast<int32_t>(sources_.size())) {
        return absl::InvalidArgumentError("keyed: expected indices into the tables");
      }
      TF_RETURN_IF_ERROR(keyed_tables.Find(static_cast<int>(i), &sources_[keyed[i]].keyed));
    }
  }
  HandleList tables;
  TF_RETURN_IF_ERROR(tables.Open(context, "tables"));
  if (tables.size() != static_cast<int>(sources_.size())) {
    return absl::InvalidArgumentError("tables: expected one for each of dims");
  }
  for (int t = 0; t < tables.size(); ++t) {
    if (sources_[t].keyed || !tables.is_handle(t)) continue;
    const absl::Status found = tables.Find(t, &sources_[t].variable);
    if (absl::IsNotFound(found)) return Uninitialized(attrs.table_names[t]);
    TF_RETURN_IF_ERROR(found);
  }
  return absl::OkStatus();
}

absl::Status Tables::Read(tensorflow::OpKernelContext* context, const GroupAttrs& attrs,
                          const std::vector<int32_t>& keyed) {
  TF_RETURN_IF_ERROR(Find(context, attrs, keyed));
  std::vector<tensorflow::mutex*> mutexes;
  mutexes.reserve(sources_.size());
  for (const Source& source : sources_) {
    if (source.variable) mutexes.push_back(source.variable->mu());
    if (source.keyed) mutexes.push_back(source.keyed->mu());
  }
  locks_.Lock(std::move(mutexes));
  tables_.resize(sources_.size());
  // Without other work between, the processor fetches where many buffers are at once.
  for (const Source& source : sources_) {
    if (source.variable) source.variable->tensor()->IsInitialized();
  }
  for (size_t t = 0; t < sources_.size(); ++t) {
    const Source& source = sources_[t];
    if (source.keyed) {
      TF_RETURN_IF_ERROR(TableOfKeyed(context, *source.keyed, attrs, t, &tables_[t]));
    } else {
      const Tensor& tensor =
          source.variable ? *source.variable->tensor() : context->input(static_cast<int>(t));
      TF_RETURN_IF_ERROR(TableOfTensor(tensor, attrs, t, &tables_[t]));
    }
    tables_[t].max_norm = attrs.max_norms[t];
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
