// What a sharded lookup leaves to the way back of its gradients.
#pragma once

#if GOOGLE_CUDA

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exchange/gpu/exchanged_group.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant_encode_decode.h"  // templates that a variant's holder needs
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tf/support/group_attrs.h"

namespace group_embedding {

// An ExchangedGroup with the memory that it works in.
class HeldGroup {
 public:
  HeldGroup(tensorflow::OpKernelContext* context, const Group& group,
            const tensorflow::Tensor& batch, std::shared_ptr<Communicator> communicator,
            const std::string& description, DataType comm_type, std::vector<KeyedFeature> keyed);

  // From now on an op of this context uses it.
  void EnterOp(tensorflow::OpKernelContext* context) { context_ = context; }

  ExchangedGroup* get() const { return group_.get(); }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // A tensor of what lies at `data` in one of the pieces of device memory.
  absl::Status View(const std::string& piece, const char* data, tensorflow::DataType dtype,
                    const tensorflow::TensorShape& shape, tensorflow::Tensor* view) const;

  // From now on a piece is its views' alone.
  void GiveAway(const std::string& piece) { on_device_.erase(piece); }

  // As ExchangedGroup::Ask, with memory for a fault.
  const ToldCounts& Ask();

  // Makes `requests`, but for its ids; returns where these go.
  absl::Status MakeRequests(int64_t** ids);

  const DataType comm_type;
  tensorflow::Tensor requests;  // the batch, as SendGroupGradients gives it
  tensorflow::Tensor served;    // kept alive: the requests as they were read
  float gradient_scale;         // of its weights
  std::vector<int64_t> num_rows;
  // Of the lookup:
  std::vector<int32_t> dims, table_of_feature;
  BatchExtents extents;

 private:
  void* Get(tensorflow::Tensor* piece, int64_t bytes, tensorflow::AllocatorAttributes where);

  const tensorflow::Tensor batch_;  // kept alive
  const std::shared_ptr<Communicator> communicator_;
  tensorflow::OpKernelContext* context_;
  std::map<std::string, tensorflow::Tensor> on_device_, on_host_;
  std::unique_ptr<ExchangedGroup> group_;
};

// What a variant holds. It stays in the process.
struct HeldGroupState {
  std::shared_ptr<HeldGroup> held;

  std::string TypeName() const { return "group_embedding::HeldGroupState"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// What all ranks were told of the batches of a group, as an error of all of them. `rank`: this one,
// whose batch is `batch`.
absl::Status ToStatus(const ToldCounts& told, const GroupAttrs& attrs,
                      const std::vector<Table>& tables, int rank, const BatchExtents& batch);

// The other ranks go on where this one stops with an error: what it sent next would be taken for
// what they wait for. So it sends nothing more, and they end when they have waited long enough.
void AbortAlone(const absl::Status& status, Communicator* communicator);

// Of the group's attributes and inputs.
Group MakeGroup(const GroupAttrs& attrs, const std::vector<Table>& tables,
                const std::vector<Feature>& features, const Batch& batch);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
