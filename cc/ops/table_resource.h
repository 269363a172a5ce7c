// The table as a TensorFlow resource.
#ifndef TF_EXT_CC_OPS_TABLE_RESOURCE_H_
#define TF_EXT_CC_OPS_TABLE_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cc/core/config.h"
#include "cc/core/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_ext {

class TableResource : public tensorflow::ResourceBase {
 public:
  static absl::Status Create(
      const TableConfig& config,
      tensorflow::core::RefCountPtr<TableResource>* resource);

  // Fails if the table was released. An op holds it as long as it works on it.
  absl::Status Get(std::shared_ptr<Table>* table) const;

  // Takes the table away: it is freed when the ops end that hold it, whoever
  // has a handle. Null if that was done before.
  std::shared_ptr<Table> Release();

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  explicit TableResource(std::unique_ptr<Table> table)
      : table_(std::move(table)) {}

  std::shared_ptr<Table> GetOrNull() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Table> table_;  // null once it was released
};

// The resource behind the handle that is input `input` of a kernel. The errors
// say what the handle is instead: not a scalar, uninitialised, of another type
// of resource, or of a table that is gone.
absl::Status LookupTableResource(
    tensorflow::OpKernelContext* ctx, int input,
    tensorflow::core::RefCountPtr<TableResource>* resource);

// The table of that resource; an error also if it was released.
absl::Status LookupTable(tensorflow::OpKernelContext* ctx, int input,
                         std::shared_ptr<Table>* table);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_RESOURCE_H_
