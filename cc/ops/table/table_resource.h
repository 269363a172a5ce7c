// SPDX-License-Identifier: Apache-2.0
// The table as a TensorFlow resource.
#ifndef TF_EXT_CC_OPS_TABLE_TABLE_RESOURCE_H_
#define TF_EXT_CC_OPS_TABLE_TABLE_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/config.h"
#include "cc/core/table/table.h"
#include "cc/ops/table/op_counts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_ext {

class TableResource : public tensorflow::ResourceBase {
 public:
  static absl::Status Create(
      const TableConfig& config,
      tensorflow::core::RefCountPtr<TableResource>* resource);

  // All that are alive in this process.
  static std::vector<tensorflow::core::RefCountPtr<TableResource>> Live();

  ~TableResource() override;

  // What ops on tables of this name count.
  TableCounts& counts() const { return counts_; }

  // The program that created the table, and may release it when it starts
  // again. `address` is unique among running programs, `run` identifies a
  // start.
  struct Owner {
    std::string address;
    std::string run;
  };
  void SetOwner(Owner owner);
  // Empty strings if it has none.
  Owner owner() const;

  // Fails if the table was released. An op holds it while it uses it.
  absl::Status Get(std::shared_ptr<Table>* table) const;

  // Releases the table, which is freed when the last op that holds it returns,
  // even while handles exist. Null if it was released before.
  std::shared_ptr<Table> Release();

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  explicit TableResource(std::unique_ptr<Table> table);

  std::shared_ptr<Table> GetOrNull() const;

  TableCounts& counts_;
  mutable Mutex mutex_;
  Owner owner_ TF_EXT_GUARDED_BY(mutex_);
  // Null once it was released.
  std::shared_ptr<Table> table_ TF_EXT_GUARDED_BY(mutex_);
};

// Looks up the resource of the handle in input `input` of a kernel. The errors
// name the defect of the handle: not a scalar, uninitialised, of another type
// of resource, or of a table that no longer exists.
absl::Status LookupTableResource(
    tensorflow::OpKernelContext* ctx, int input,
    tensorflow::core::RefCountPtr<TableResource>* resource);

// Looks up the table of that resource; fails also if it was released.
absl::Status LookupTable(tensorflow::OpKernelContext* ctx, int input,
                         std::shared_ptr<Table>* table,
                         TableCounts** counts = nullptr);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_TABLE_RESOURCE_H_
