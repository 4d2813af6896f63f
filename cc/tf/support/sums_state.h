// SumsState: what a lookup by owners' sums keeps for the backward pass.
#pragma once

#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "exchange/gpu/sums_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant_encode_decode.h"  // templates that a variant's holder needs
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tf/support/group_attrs.h"
#include "tf/support/named_tensors.h"

namespace group_embedding {

// A SumsLookup and the tensors that hold its memory.
class SumsState {
 public:
  SumsState(tensorflow::OpKernelContext* context, const Group& group,
            std::vector<TableOwner> owners, const tensorflow::Tensor& batch,
            std::shared_ptr<Communicator> communicator, const std::string& description,
            DataType comm_type);

  SumsLookup* get() { return &lookup_; }
  NamedTensors* tensors() { return &tensors_; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // As SumsLookup::RequestCounts, with memory for a fault.
  const ExchangedCounts& RequestCounts();
  // Points features of tables by columns, whose outputs are whole, to this rank's columns.
  void PointToOwnColumns(std::vector<Feature>* features) const;

  std::vector<int32_t> local_dims;  // [num_tables] of each owner's part
  float gradient_scale;             // of a rank's gradients before all ranks' are added
  // The lookup's batch, compared with the arguments of the backward pass.
  BatchExtents extents;

 private:
  const tensorflow::Tensor batch_;  // kept alive
  const std::shared_ptr<Communicator> communicator_;
  const std::vector<TableOwner> owners_;
  const DataType type_;
  NamedTensors tensors_;
  SumsLookup lookup_;
};

// The content of the variant tensor `state`. It cannot be serialized.
struct SumsStateVariant {
  std::shared_ptr<SumsState> held;

  std::string TypeName() const { return "group_embedding::SumsStateVariant"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// The state that an op gets as its input "state".
absl::Status ReadSumsState(tensorflow::OpKernelContext* context, std::shared_ptr<SumsState>* held);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
