// HandlePack: the handles of many variables or keyed tables as one resource, whose own handle an op
// takes in their place. It finds the resources once, and holds them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace group_embedding {

class HandlePack : public tensorflow::ResourceBase {
 public:
  explicit HandlePack(std::vector<tensorflow::ResourceHandle> handles)
      : handles_(std::move(handles)) {
    for (size_t i = 0; i < handles_.size(); ++i) {
      const tensorflow::ResourceHandle& handle = handles_[i];
      resources_.push_back({handle.resource().get(), handle.hash_code()});
      if (i == 0 || handle.device() != handles_[i - 1].device()) other_devices_.push_back(i);
    }
  }

  std::string DebugString() const override {
    return "the handles of " + std::to_string(handles_.size()) + " resources";
  }
  int size() const { return static_cast<int>(handles_.size()); }

  // Refuses resources on another device than the op's.
  absl::Status CheckDevices(tensorflow::OpKernelContext* context) const {
    for (const size_t i : other_devices_) {
      TF_RETURN_IF_ERROR(tensorflow::internal::ValidateDevice(context, handles_[i]));
    }
    return absl::OkStatus();
  }

  // Resource `i`; an error if it is of another type. To be called after CheckDevices.
  template <typename Resource>
  absl::Status Find(tensorflow::OpKernelContext* context, int i,
                    tensorflow::core::RefCountPtr<Resource>* resource) const {
    const Held& held = resources_[i];
    if (held.resource == nullptr) return LookupResource(context, handles_[i], resource);
    if (held.type != tensorflow::TypeIndex::Make<Resource>().hash_code()) {
      return handles_[i].ValidateType<Resource>();
    }
    held.resource->Ref();
    resource->reset(static_cast<Resource*>(held.resource));
    return absl::OkStatus();
  }

 private:
  // A resource that its handle keeps alive; null: it is found by name at each call.
  struct Held {
    tensorflow::ResourceBase* resource;
    uint64_t type;
  };

  const std::vector<tensorflow::ResourceHandle> handles_;
  std::vector<Held> resources_;        // beside each other: a step walks all of them
  std::vector<size_t> other_devices_;  // handles with another device than the one before
};

}  // namespace group_embedding
