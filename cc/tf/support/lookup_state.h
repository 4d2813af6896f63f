// LookupState: what a sharded lookup keeps for the backward pass.
#pragma once

#if GOOGLE_CUDA

#include <memory>
#include <string>
#include <vector>

#include "exchange/gpu/sharded_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant_encode_decode.h"  // templates that a variant's holder needs
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tf/support/group_attrs.h"
#include "tf/support/named_tensors.h"

namespace group_embedding {

// A ShardedLookup and the tensors that hold its memory.
class LookupState {
 public:
  LookupState(tensorflow::OpKernelContext* context, const Group& group,
              const tensorflow::Tensor& batch, std::shared_ptr<Communicator> communicator,
              const std::string& description, DataType comm_type, std::vector<KeyedFeature> keyed);

  // Its op allocates memory, and its stream is used.
  NamedTensors* tensors() { return &tensors_; }

  ShardedLookup* get() const { return lookup_.get(); }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // As ShardedLookup::RequestCounts, with memory for a fault.
  const ExchangedCounts& RequestCounts();

  // Allocates `requests` and writes all of it but its ids. ids: set to where they are to be
  // written.
  absl::Status MakeRequests(int64_t** ids);

  const DataType comm_type;
  tensorflow::Tensor requests;  // the requested rows as a batch, an output of SendGroupGradients
  tensorflow::Tensor served;    // the requests as they were served; kept alive
  float gradient_scale;         // the weight of each request
  std::vector<int64_t> num_rows;
  // The lookup's tables and batch, compared with the arguments of the backward pass:
  std::vector<int32_t> dims, table_of_feature;
  BatchExtents extents;

 private:
  const tensorflow::Tensor batch_;  // kept alive
  const std::shared_ptr<Communicator> communicator_;
  NamedTensors tensors_;
  std::unique_ptr<ShardedLookup> lookup_;
};

// The content of the variant tensor `state`. It cannot be serialized.
struct LookupStateVariant {
  std::shared_ptr<LookupState> held;

  std::string TypeName() const { return "group_embedding::LookupStateVariant"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// Returns the disagreement, or the bad id, that RequestCounts reported on all ranks. rank: this
// rank, whose batch is `batch`.
absl::Status ToStatus(const ExchangedCounts& told, const GroupAttrs& attrs,
                      const std::vector<Table>& tables, int rank, const BatchExtents& batch);

// Ends the communicator's calls after an error that only this rank has. The other ranks would take
// the rank's next message for the one that is missing; instead they end by the time-out.
void AbortAlone(const absl::Status& status, Communicator* communicator);

// The group with the op's attributes and inputs.
Group MakeGroup(const GroupAttrs& attrs, const std::vector<Table>& tables,
                const std::vector<Feature>& features, const Batch& batch);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
