#include "fused/launch_update.cuh"

namespace group_embedding {

template cudaError_t LaunchUpdate<__half>(const Group&, const SortedRows&, const Update&, void*,
                                          cudaStream_t);

}  // namespace group_embedding
