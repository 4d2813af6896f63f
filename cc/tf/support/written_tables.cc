#include "tf/support/written_tables.h"

#include <algorithm>

#include "table/device/device_table.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataTypeString;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The place of the rule called `name`, or -1.
RuleIndex FindRule(const std::string& name, int* row_slot, int* num_slots) {
  bool found = false;
  RuleIndex at = 0;
  for (; !found; ++at) {
    const bool exists = ForRule(at, [&](auto rule) {
      found = name == rule.kName;
      *row_slot = rule.kRowSlot;
      *num_slots = rule.kNumSlots;
    });
    if (!exists) return -1;
  }
  return at - 1;
}

std::string RuleNames() {
  std::string names;
  for (RuleIndex at = 0; ForRule(
           at,
           [&](auto rule) { names += (at == 0 ? "'" : ", '") + std::string(rule.kName) + "'"; });
       ++at) {
  }
  return names;
}

// `what()` names the tensor, for errors alone: a step has hundreds of tensors.
template <typename What>
absl::Status Check(const Tensor& tensor, const What& what, tensorflow::DataType dtype) {
  if (!tensor.IsInitialized()) {
    return absl::FailedPreconditionError(what() +
                                         ": expected an initialized variable; run its initializer");
  }
  if (tensor.dtype() != dtype) {
    return absl::InvalidArgumentError(what() + ": expected " + DataTypeString(dtype) + ", got " +
                                      DataTypeString(tensor.dtype()));
  }
  if (tensor.dims() != 2 || tensor.dim_size(1) < 1 || tensor.dim_size(1) > kMaxDim) {
    return absl::InvalidArgumentError(
        what() + ": expected shape [rows, dim], 1 <= dim <= " + std::to_string(kMaxDim) + ", got " +
        tensor.shape().DebugString());
  }
  return absl::OkStatus();
}

}  // namespace

RuleAttrs::RuleAttrs(tensorflow::OpKernelConstruction* context) {
  std::string name;
  int num_slots = 0;
  OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
  OP_REQUIRES_OK(context, context->GetAttr("rule_slots", &slots));
  OP_REQUIRES_OK(context, context->GetAttr("keyed_slot_names", &keyed_slot_names));
  OP_REQUIRES_OK(context, context->GetAttr("keyed_slot_starts", &keyed_slot_starts));
  OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype));
  OP_REQUIRES_OK(context, context->GetAttr("slot_dtype", &slot_dtype));
  OP_REQUIRES_OK(context, context->GetAttr("stochastic_rounding", &stochastic_rounding));
  OP_REQUIRES_OK(context, context->GetAttr("stochastic_slots", &stochastic_slots));
  rule = FindRule(name, &row_slot, &num_slots);
  OP_REQUIRES(
      context, rule >= 0,
      absl::InvalidArgumentError("rule: expected one of " + RuleNames() + ", got '" + name + "'"));
  for (const int32_t slot : slots) {
    OP_REQUIRES(context, slot >= 0 && slot < num_slots,
                absl::InvalidArgumentError("rule_slots: rule '" + name + "' has " +
                                           std::to_string(num_slots) + " slots, got slot " +
                                           std::to_string(slot)));
  }
  const bool has_row_slot = std::find(slots.begin(), slots.end(), row_slot) != slots.end();
  OP_REQUIRES(context, row_slot == kNoRowSlot || has_row_slot,
              absl::InvalidArgumentError("rule_slots: rule '" + name + "' needs its slot " +
                                         std::to_string(row_slot) + ", one number per row"));
  OP_REQUIRES_OK(context, CheckSlotType(name));
  int num_keyed;
  OP_REQUIRES_OK(context, context->GetAttr("num_keyed", &num_keyed));
  OP_REQUIRES(context,
              num_keyed == 0 || (keyed_slot_names.size() == slots.size() &&
                                 keyed_slot_starts.size() == slots.size()),
              absl::InvalidArgumentError(
                  "keyed_slot_names, keyed_slot_starts: expected one for each of rule_slots"));
}

absl::Status RuleAttrs::CheckSlotType(const std::string& name) const {
  const bool is_narrow = slot_dtype != tensorflow::DT_FLOAT;
  if (stochastic_slots && (slot_dtype != tensorflow::DT_BFLOAT16 || !HasSmallSlots(rule))) {
    return absl::InvalidArgumentError(
        "stochastic_slots: expected slots in bfloat16 of a rule that has them, got " +
        DataTypeString(slot_dtype) + " of rule '" + name + "'");
  }
  if (!is_narrow || slot_dtype == dtype ||
      (slot_dtype == tensorflow::DT_BFLOAT16 && HasSmallSlots(rule))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("slot_dtype: expected float or " + DataTypeString(dtype) +
                                    ", as the rows are, got " + DataTypeString(slot_dtype) +
                                    " of rule '" + name + "'");
}

absl::Status WrittenTables::Find(OpKernelContext* context, const HandleList& list, int i,
                                 const std::string& name) {
  const absl::Status found = variables_.Add(context, list, i);
  if (!absl::IsNotFound(found)) return found;
  return absl::FailedPreconditionError("table '" + name +
                                       "': expected initialized variables for it and its slots; "
                                       "run their initializers");
}

absl::Status WrittenTables::Open(OpKernelContext* context, const RuleAttrs& attrs,
                                 const std::vector<std::string>& names) {
  HandleList tables, slots, keyed;
  TF_RETURN_IF_ERROR(tables.Open(context, "tables"));
  TF_RETURN_IF_ERROR(slots.Open(context, "slots"));
  TF_RETURN_IF_ERROR(keyed.Open(context, "keyed_tables"));
  if (tables.size() + keyed.size() != static_cast<int>(names.size())) {
    return absl::InvalidArgumentError("expected one name for each table");
  }
  const int num_slots = static_cast<int>(attrs.slots.size());
  if (slots.size() != tables.size() * num_slots) {
    return absl::InvalidArgumentError("slots: expected " +
                                      std::to_string(tables.size() * num_slots) + ", got " +
                                      std::to_string(slots.size()));
  }
  variables_.Reserve(tables.size() + slots.size());
  tables_.reserve(names.size());
  updates_.reserve(names.size());
  for (int i = 0; i < tables.size(); ++i) {
    TF_RETURN_IF_ERROR(Find(context, tables, i, names[i]));
  }
  for (int i = 0; i < slots.size(); ++i) {
    TF_RETURN_IF_ERROR(Find(context, slots, i, names[i / num_slots]));
  }
  std::vector<tensorflow::mutex*> mutexes = variables_.mutexes();
  for (int i = 0; i < keyed.size(); ++i) {
    keyed_.emplace_back();
    TF_RETURN_IF_ERROR(keyed.Find(i, &keyed_.back()));
    mutexes.push_back(keyed_.back()->mu());
  }
  locks_.Lock(mutexes);
  TF_RETURN_IF_ERROR(OpenVariables(context, attrs, tables.size(), names));
  return CatchErrors([&] {
    for (const EmbeddingTablePtr& table : keyed_) {
      TF_RETURN_IF_ERROR(OpenKeyed(context, attrs, *table));
    }
    return absl::OkStatus();
  });
}

absl::Status WrittenTables::OpenVariables(OpKernelContext* context, const RuleAttrs& attrs,
                                          int num_tables, const std::vector<std::string>& names) {
  const int num_slots = static_cast<int>(attrs.slots.size());
  const auto open = [&](int at, const auto& what, tensorflow::DataType dtype) -> absl::Status {
    TF_RETURN_IF_ERROR(Check(variables_.Value(context, at), what, dtype));
    return variables_.MakeWritable(context, at, LaterReads::kCopy);
  };
  variables_.Touch();
  for (int t = 0; t < num_tables; ++t) {
    const auto what = [&] { return "table '" + names[t] + "'"; };
    TF_RETURN_IF_ERROR(open(t, what, attrs.dtype));
    const Tensor& rows = variables_.Value(context, t);
    const int64_t num_rows = rows.dim_size(0), dim = rows.dim_size(1);
    tables_.push_back({rows.data(), num_rows, static_cast<int32_t>(dim), 0});
    updates_.push_back({rows.data(), {}});
    for (int s = 0; s < num_slots; ++s) {
      const int at = num_tables + t * num_slots + s;
      const int64_t slot_dim = attrs.slots[s] == attrs.row_slot ? 1 : dim;
      const auto what_slot = [&] { return what() + ", slot " + std::to_string(attrs.slots[s]); };
      TF_RETURN_IF_ERROR(open(at, what_slot, attrs.slot_dtype));
      const Tensor& slot = variables_.Value(context, at);
      if (slot.dim_size(0) != num_rows || slot.dim_size(1) != slot_dim) {
        return absl::InvalidArgumentError(what_slot() + ": expected shape " +
                                          TensorShape({num_rows, slot_dim}).DebugString() +
                                          ", got " + slot.shape().DebugString());
      }
      updates_.back().slots[attrs.slots[s]] = slot.data();
    }
  }
  return absl::OkStatus();
}

absl::Status WrittenTables::OpenKeyed(OpKernelContext* context, const RuleAttrs& attrs,
                                      const EmbeddingTableResource& keyed) {
  TF_RETURN_IF_ERROR(keyed.CheckInitialized());
  EmbeddingTable& table = *keyed.table();
  TF_RETURN_IF_ERROR(CheckReachable(context, table));
  if (table.options().dtype != ToCore(attrs.dtype)) {
    return absl::InvalidArgumentError("table '" + keyed.name() + "': expected " +
                                      DataTypeString(attrs.dtype) + ", got " +
                                      DataTypeString(FromCore(table.options().dtype)));
  }
  TableUpdate update = {
      const_cast<void*>(table.rows().rows), {}, table.first_row(), table.row_keys()};
  for (size_t s = 0; s < attrs.slots.size(); ++s) {
    const SlotOptions slot = {attrs.keyed_slot_names[s],
                              attrs.slots[s] == attrs.row_slot ? 1 : table.options().dim,
                              ToCore(attrs.slot_dtype), attrs.keyed_slot_starts[s]};
    TF_RETURN_IF_ERROR(ToStatus(table.Slot(slot, &update.slots[attrs.slots[s]])));
  }
  tables_.push_back(table.rows());
  updates_.push_back(update);
  return absl::OkStatus();
}

absl::Status WrittenTables::BeforeWrite(OpKernelContext* context, size_t t, const int64_t* rows,
                                        int64_t num_rows) const {
  const size_t num_variables = tables_.size() - keyed_.size();
  if (t < num_variables) return absl::OkStatus();
  EmbeddingTable* table = keyed_[t - num_variables]->table().get();
#if GOOGLE_CUDA
  if (context->op_device_context() != nullptr) {
    return ToStatus(BeforeWriteCuda(table->device(), rows, num_rows, StreamOf(context)));
  }
#endif
  table->BeforeWrite(rows, num_rows);
  return absl::OkStatus();
}

}  // namespace group_embedding
