#include "tf/support/locate_requests.h"

#if GOOGLE_CUDA

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/device_buffer.h"
#include "exchange/gpu/request_batch.h"
#include "tf/support/device.h"

namespace group_embedding {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

std::vector<KeyedFeature> KeyedFeaturesOf(const std::vector<int32_t>& keyed,
                                          const BatchInput& batch,
                                          const std::vector<Feature>& features) {
  std::vector<KeyedFeature> found;
  for (int64_t f = 0; f < batch.extents.num_features(); ++f) {
    const int32_t table = features[f].table;
    if (std::find(keyed.begin(), keyed.end(), table) == keyed.end()) continue;
    found.push_back({batch.extents.first_ids[f], batch.extents.num_ids(f), table});
  }
  return found;
}

RequestLocator::RequestLocator(OpKernelContext* context, const Tables& tables,
                               std::vector<int32_t> keyed, std::vector<int64_t> steps,
                               std::vector<bool> trains)
    : context_(context),
      tables_(tables.get()),
      keyed_(std::move(keyed)),
      steps_(std::move(steps)),
      trains_(std::move(trains)) {
  for (const int32_t t : keyed_) leases_.push_back(std::make_unique<BatchLease>(tables.keyed(t)));
}

std::vector<Table> RequestLocator::Locate(const std::vector<int64_t>& requested, int64_t* requests,
                                          const int64_t* times) {
  std::map<int64_t, std::vector<DeviceKeysToLocate>> to_train;  // by step
  std::vector<DeviceKeysToLocate> to_read;
  int64_t* rows = requests;
  if (MayAdmit()) {  // then requests become what is read, and these what is trained
    const int64_t count = std::accumulate(requested.begin(), requested.end(), int64_t{0});
    status_ = context_->allocate_temp(tensorflow::DT_INT64, TensorShape({count}), &trained_);
    if (!status_.ok()) throw std::runtime_error(std::string(status_.message()));
    rows = trained_.flat<int64_t>().data();
    RequireCuda(cudaMemcpyAsync(rows, requests, count * sizeof(int64_t), cudaMemcpyDeviceToDevice,
                                StreamOf(context_)));
  }
  for (size_t k = 0; k < keyed_.size(); ++k) {
    auto& list = trains_[k] ? to_train[steps_[k]] : to_read;
    const auto of_table =
        RequestsOf(k, requested, rows, rows == requests ? nullptr : requests, times);
    list.insert(list.end(), of_table.begin(), of_table.end());
  }
  for (const auto& [step, list] : to_train) Run(list, Access::kTrain, step);
  Run(to_read, Access::kRead, -1);
  for (size_t k = 0; k < keyed_.size(); ++k) {
    tables_[keyed_[k]].num_rows = leases_[k]->table()->rows().num_rows;
  }
  return tables_;
}

std::vector<DeviceKeysToLocate> RequestLocator::RequestsOf(size_t table,
                                                           const std::vector<int64_t>& requested,
                                                           int64_t* rows, int64_t* reads,
                                                           const int64_t* times) const {
  std::vector<DeviceKeysToLocate> list;
  const size_t num_tables = tables_.size();
  int64_t at = 0;
  for (size_t p = 0; p < requested.size(); at += requested[p++]) {
    if (static_cast<int32_t>(p % num_tables) != keyed_[table]) continue;
    list.push_back({leases_[table]->table()->device(), rows + at, requested[p], rows + at,
                    times + at, reads == nullptr ? nullptr : reads + at, leases_[table]->batch()});
  }
  return list;
}

void RequestLocator::Run(const std::vector<DeviceKeysToLocate>& requests, Access access,
                         int64_t step) {
  if (requests.empty()) return;
  const auto count = static_cast<int64_t>(requests.size());
  Tensor scratch;
  status_ =
      AllocateScratch(context_, LocateRowsScratchBytes(requests.data(), count, access), &scratch);
  if (status_.ok()) {
    status_ = ToStatus(
        LocateRowsCuda(requests.data(), count, access, step, scratch.data(), StreamOf(context_)));
  }
  if (!status_.ok()) throw std::runtime_error(std::string(status_.message()));
}

bool RequestLocator::MayAdmit() const {
  for (size_t k = 0; k < keyed_.size(); ++k) {
    if (trains_[k] && HasFilter(leases_[k]->table()->options())) return true;
  }
  return false;
}

Tensor RequestLocator::Hold(const Tensor& requests, bool training) {
  Tensor held = requests;
  if (trained_.NumElements() > 0) {
    const cudaStream_t stream = StreamOf(context_);
    const auto copy = [stream](const void* from, int64_t bytes, void* to) {
      RequireCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
    };
    status_ = context_->allocate_temp(requests.dtype(), requests.shape(), &held);
    if (!status_.ok()) throw std::runtime_error(std::string(status_.message()));
    copy(requests.data(), static_cast<int64_t>(requests.TotalBytes()), held.data());
    copy(trained_.data(), static_cast<int64_t>(trained_.TotalBytes()),
         held.flat<float>().data() + LayOutRequests(trained_.NumElements()).ids);
  }
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
      new LocatedBuffer(held, std::move(leases_), training));
  return Tensor(held.dtype(), held.shape(), std::move(buffer));
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
