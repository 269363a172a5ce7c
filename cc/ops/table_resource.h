// The table as a TensorFlow resource.
#ifndef TF_EXT_CC_OPS_TABLE_RESOURCE_H_
#define TF_EXT_CC_OPS_TABLE_RESOURCE_H_

#include <cstdint>
#include <memory>
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

  Table& table() { return *table_; }

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  explicit TableResource(std::unique_ptr<Table> table)
      : table_(std::move(table)) {}

  const std::unique_ptr<Table> table_;
};

// The table behind the handle that is input `input` of a kernel. The errors
// say what the handle is instead: not a scalar, uninitialised, of another type
// of resource, or of a table that is gone.
absl::Status LookupTable(
    tensorflow::OpKernelContext* ctx, int input,
    tensorflow::core::RefCountPtr<TableResource>* resource);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_RESOURCE_H_
