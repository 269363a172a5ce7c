// SPDX-License-Identifier: Apache-2.0
// Kernels that record and return as which task a process was started.

#include <mutex>
#include <string>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

struct RecordedTask {
  std::mutex mutex;
  std::string text;
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
    const std::lock_guard<std::mutex> lock(Recorded().mutex);
    Recorded().text = task.scalar<tstring>()();
  }
};

class TaskOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Tensor* task = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &task));
    const std::lock_guard<std::mutex> lock(Recorded().mutex);
    task->scalar<tstring>()() = Recorded().text;
  }
};

REGISTER_KERNEL_BUILDER(Name("TfExt>SetTask").Device(tensorflow::DEVICE_CPU),
                        SetTaskOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>Task").Device(tensorflow::DEVICE_CPU),
                        TaskOp);

}  // namespace
}  // namespace tf_ext
