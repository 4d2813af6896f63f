#include "fused/group_update.h"
#include "fused/launch_reduce.cuh"
#include "fused/launch_update.h"
#include "fused/update_any_table.cuh"

namespace group_embedding {

int64_t GroupUpdateWorkspaceBytesCuda(const Group& group) {
  return SortRowsWorkspaceBytesCuda(group) + ReduceScratchBytes<ApplyRule<float>>(group);
}

cudaError_t GroupUpdateCuda(const Group& group, const Update& update, void* workspace,
                            cudaStream_t stream) {
  if (group.batch.num_ids == 0) return cudaSuccess;
  // The ids of a table that stays as it is need not be sorted.
  std::vector<Feature> features(group.features, group.features + group.num_features);
  for (Feature& feature : features) {
    if (update.tables[feature.table].rows == nullptr) feature.output = nullptr;
  }
  Group updated = group;
  updated.features = features.data();
  std::vector<int64_t> first_rows;
  for (int64_t t = 0; t < group.num_tables; ++t) first_rows.push_back(update.tables[t].first_row);
  SortedRows sorted;
  SortOptions options;
  options.first_rows = first_rows.data();
  const cudaError_t error = SortRowsCuda(updated, workspace, &sorted, stream, options);
  if (error != cudaSuccess) return error;
  void* scratch = static_cast<char*>(workspace) + SortRowsWorkspaceBytesCuda(group);
  return ForDeviceType(group.dtype, [&](auto* type) {
    return LaunchUpdate<std::remove_pointer_t<decltype(type)>>(updated, sorted, update, scratch,
                                                               stream);
  });
}

}  // namespace group_embedding
