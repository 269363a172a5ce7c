// SPDX-License-Identifier: Apache-2.0
// Kernels that say what a process of a cluster is: its versions, and its task.

#include <dlfcn.h>

#include <string>
#include <utility>

#include "cc/core/support/mutex.h"
#include "cc/core/support/version.h"
#include "cc/ops/kernel_util.h"

// From TensorFlow's C API. It is not in the library that op libraries are
// linked with, but in one that Python has loaded before.
extern "C" const char* TF_Version() __attribute__((weak));

namespace tf_ext {
namespace {

struct RecordedTask {
  Mutex mutex;
  std::string text TF_EXT_GUARDED_BY(mutex);
};

RecordedTask& Recorded() {
  // Never destroyed: a kernel may run while the process ends.
  static RecordedTask* const recorded = new RecordedTask;
  return *recorded;
}

absl::Status RunSetTask(OpKernelContext* ctx) {
  std::string task;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "task", 0, &task));
  RecordedTask& recorded = Recorded();
  const ExclusiveLock lock(recorded.mutex);
  recorded.text = std::move(task);
  return absl::OkStatus();
}

absl::Status RunTask(OpKernelContext* ctx) {
  RecordedTask& recorded = Recorded();
  const ExclusiveLock lock(recorded.mutex);
  return SetScalarOutput<tstring>(ctx, 0, recorded.text);
}

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

absl::Status RunVersions(OpKernelContext* ctx) {
  tstring* versions = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({2}), &versions));
  versions[0] = kVersion;
  versions[1] = TensorFlowVersion();
  return absl::OkStatus();
}

TF_EXT_REGISTER_FUNCTION(SetTask);
TF_EXT_REGISTER_FUNCTION(Task);
TF_EXT_REGISTER_FUNCTION(Versions);

}  // namespace
}  // namespace tf_ext
