#include "fused/launch_update.cuh"

namespace group_embedding {

template cudaError_t LaunchUpdate<__nv_bfloat16>(const Group&, const SortedRows&, const Update&,
                                                 void*, cudaStream_t);

}  // namespace group_embedding
