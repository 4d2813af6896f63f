#include "tf/support/make_table.h"

#include <utility>

#include "table/check_table.h"
#include "table/device/device_table.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {
namespace {

absl::Status MakeOnGpu(tensorflow::OpKernelContext* context, const StorageAttrs& storage,
                       const TableOptions& options, const void* matrix,
                       std::shared_ptr<EmbeddingTable>* table) {
  const std::string where = "table '" + options.name + "': storage '" + storage.type + "' ";
#if GOOGLE_CUDA
  if (context->op_device_context() == nullptr) {
    return absl::InvalidArgumentError(where + "is made on a GPU; place its handle on one");
  }
  Status status;
  const DeviceTierOptions tiers = {storage.type == "hbm" ? 0 : storage.max_bytes,
                                   storage.cache_strategy};
  if (storage.type == "hbm_dram_ssdhash") {
    const DiskTierOptions disk = {storage.path, storage.lowest_max_bytes, storage.cache_strategy};
    *table = MakeDiskTieredDeviceTable(options, storage.max_bytes, disk, matrix, &status);
  } else {
    *table = MakeDeviceTable(options, tiers, matrix, &status);
  }
  return ToStatus(status);
#else
  return absl::UnimplementedError(where + "needs a library that was built with CUDA; use 'dram'");
#endif
}

}  // namespace

StorageAttrs::StorageAttrs(tensorflow::OpKernelConstruction* context) {
  std::string strategy;
  OP_REQUIRES_OK(context, context->GetAttr("storage", &type));
  OP_REQUIRES_OK(context, context->GetAttr("max_bytes", &max_bytes));
  OP_REQUIRES_OK(context, context->GetAttr("lower_max_bytes", &lower_max_bytes));
  OP_REQUIRES_OK(context, context->GetAttr("lowest_max_bytes", &lowest_max_bytes));
  OP_REQUIRES_OK(context, context->GetAttr("storage_path", &path));
  OP_REQUIRES_OK(context, context->GetAttr("cache_strategy", &strategy));
  for (const int64_t bytes : {max_bytes, lower_max_bytes, lowest_max_bytes}) {
    OP_REQUIRES(context, bytes >= 0 && bytes <= kMaxTierBytes,
                absl::InvalidArgumentError(
                    "max_bytes, lower_max_bytes, lowest_max_bytes: expected 0 to 2^60, got " +
                    std::to_string(bytes)));
  }
  cache_strategy = strategy == "lru" ? CacheStrategy::kLeastRecent : CacheStrategy::kLeastFrequent;
}

absl::Status MakeTable(tensorflow::OpKernelContext* context, const StorageAttrs& storage,
                       TableOptions options, const void* matrix,
                       std::shared_ptr<EmbeddingTable>* table) {
  return CatchErrors([&] {
    options.max_bytes = storage.max_bytes;
    if (storage.is_on_gpu() && storage.type != "hbm") {  // of which this counts both memories
      const bool is_limited = storage.lower_max_bytes > 0;
      options.max_bytes = is_limited ? storage.max_bytes + storage.lower_max_bytes : 0;
    }
    const Status wrong = CheckOptions(options);
    if (!wrong.ok()) return absl::InvalidArgumentError(wrong.message());
    if (storage.is_on_gpu()) return MakeOnGpu(context, storage, options, matrix, table);
    Status status;
    if (storage.type == "dram") {
      *table = MakeHostTable(options, matrix, &status);
    } else {
      const DiskTierOptions disk = {storage.path, storage.lower_max_bytes, storage.cache_strategy};
      *table = MakeDiskTieredTable(options, disk, matrix, &status);
    }
    return ToStatus(status);
  });
}

}  // namespace group_embedding
