// SPDX-License-Identifier: Apache-2.0
// Kernels that say what a process of a cluster is: its versions, and its task.

#include <dlfcn.h>

#include <string>

#include "cc/core/support/mutex.h"
#include "cc/core/support/version.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

// From TensorFlow's C API. It is not in the library that op libraries are
// linked with, but in one that Python has loaded before.
extern "C" const char* TF_Version() __attribute__((weak));

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

struct RecordedTask {
  Mutex mutex;
  std::string text TF_EXT_GUARDED_BY(mutex);
};

RecordedTask& Recorded() {
  // Never destroyed: a kernel may run while the process ends.
  static RecordedTask* const recorded = new RecordedTask;
  return *recorded;
}

class SetTaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& task = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckScalar("task", task));
    RecordedTask& recorded = Recorded();
    const ExclusiveLock lock(recorded.mutex);
    recorded.text = task.scalar<tstring>()();
  }
};

class TaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Tensor* task = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &task));
    RecordedTask& recorded = Recorded();
    const ExclusiveLock lock(recorded.mutex);
    task->scalar<tstring>()() = recorded.text;
  }
};

// "unknown" in a process that has loaded no C API.
const char* TensorFlowVersion() {
  if (TF_Version != nullptr) return TF_Version();
  // Until TensorFlow 2.19, Python loads that library for itself alone.
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "unknown";
  void* symbol = dlsym(library, "TF_Version");
  if (symbol == nullptr) return "unknown";
  return reinterpret_cast<decltype(&TF_Version)>(symbol)();
}

class VersionsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Tensor* versions = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2}), &versions));
    auto values = versions->vec<tstring>();
    values(0) = kVersion;
    values(1) = TensorFlowVersion();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfExt>SetTask").Device(tensorflow::DEVICE_CPU),
                        SetTaskOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>Task").Device(tensorflow::DEVICE_CPU),
                        TaskOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>Versions").Device(tensorflow::DEVICE_CPU),
                        VersionsOp);

}  // namespace
}  // namespace tf_ext
