#include "tf/serving/session/interruptible_session.h"

#include <dlfcn.h>

#include <new>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/direct_session.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tf/serving/ops/served_request.h"

namespace group_embedding {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::Device;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ThreadPoolDevice;

class InterruptibleCpu : public ThreadPoolDevice {
 public:
  // In the place of a CPU that TensorFlow has made.
  InterruptibleCpu(const tensorflow::SessionOptions& options, Device* made)
      : ThreadPoolDevice(options, made->name(),
                         tensorflow::Bytes(made->attributes().memory_limit()),
                         made->attributes().locality(), made->GetAllocator({})) {}

  void Compute(OpKernel* kernel, OpKernelContext* context) override {
    if (IsOver(context)) return;
    ThreadPoolDevice::Compute(kernel, context);
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                    AsyncOpKernel::DoneCallback done) override {
    if (IsOver(context)) return done();
    ThreadPoolDevice::ComputeAsync(kernel, context, std::move(done));
  }

 private:
  static bool IsOver(OpKernelContext* context) {
    ServedRequest* const request = ServedRequest::Current();
    if (request == nullptr || !request->IsOver()) return false;
    context->SetStatus(request->Check());
    return true;
  }
};

// TensorFlow's constructor, in the library that libge_serving has loaded. This library is linked
// against TensorFlow's framework alone, which has all else that is used.
using MakeDirectSession = void (*)(void* memory, const tensorflow::SessionOptions&,
                                   const tensorflow::DeviceMgr*, tensorflow::DirectSessionFactory*);

MakeDirectSession FindConstructor() {
  constexpr char kName[] =
      "_ZN10tensorflow13DirectSessionC1ERKNS_14SessionOptionsEPKNS_9DeviceMgrEPNS_"
      "20DirectSessionFactoryE";
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<MakeDirectSession>(dlsym(library, kName));
}

}  // namespace

absl::Status MakeInterruptibleSession(const tensorflow::SessionOptions& options,
                                      std::unique_ptr<tensorflow::Session>* session) {
  std::vector<std::unique_ptr<Device>> devices;
  TF_RETURN_IF_ERROR(
      tensorflow::DeviceFactory::AddDevices(options, "/job:localhost/replica:0/task:0", &devices));
  for (std::unique_ptr<Device>& device : devices) {
    if (device->device_type() != tensorflow::DEVICE_CPU) continue;
    device = std::make_unique<InterruptibleCpu>(options, device.get());
  }
  static const MakeDirectSession construct = FindConstructor();
  if (construct == nullptr) {
    return absl::FailedPreconditionError(
        "expected tensorflow::DirectSession in the libtensorflow_cc.so.2 that is loaded");
  }
  void* memory = ::operator new(sizeof(tensorflow::DirectSession));
  construct(memory, options, new tensorflow::StaticDeviceMgr(std::move(devices)), nullptr);
  session->reset(static_cast<tensorflow::DirectSession*>(memory));
  return absl::OkStatus();
}

}  // namespace group_embedding
