// SPDX-License-Identifier: Apache-2.0
// Evicts all but a number of the rows that were pushed most recently, or that
// have the highest `show`.
#ifndef TF_EXT_CC_CORE_TABLE_EVICTION_CAPACITY_H_
#define TF_EXT_CC_CORE_TABLE_EVICTION_CAPACITY_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "cc/core/support/message.h"
#include "cc/core/table/eviction/policy.h"

namespace tf_ext {

class CapacityEviction : public EvictionPolicy {
 public:
  static constexpr char kName[] = "capacity";

  // Takes `capacity`, at least 0, and `by_show`.
  static Status Make(const EvictionArgs& args,
                     std::unique_ptr<const EvictionPolicy>* policy) {
    if (args.capacity < 0) {
      return Invalid("capacity is ", args.capacity, "; it must be at least 0.");
    }
    *policy = std::make_unique<CapacityEviction>(args.capacity, args.by_show);
    return Status::Ok();
  }

  CapacityEviction(int64_t rows, bool by_show)
      : rows_(rows), by_show_(by_show) {}

  Fields fields() const override { return {!by_show_, by_show_ ? 1 : 0}; }

  int64_t capacity() const override { return rows_; }

  uint32_t Rank(const EvictionRow& row) const override {
    if (!by_show_) return static_cast<uint32_t>(row.last_seen);
    // Values that no push writes, but an import may (negative ones and NaN),
    // are equal to 0. The bits of others are in their order.
    if (!(row.show > 0)) return 0;
    uint32_t bits;
    std::memcpy(&bits, &row.show, sizeof(bits));
    return bits;
  }

 private:
  const int64_t rows_;
  const bool by_show_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_EVICTION_CAPACITY_H_
