// SPDX-License-Identifier: Apache-2.0
// Evicts rows that were not pushed for a number of steps or seconds.
#ifndef TF_EXT_CC_CORE_TABLE_EVICTION_UNSEEN_H_
#define TF_EXT_CC_CORE_TABLE_EVICTION_UNSEEN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/support/message.h"
#include "cc/core/table/eviction/policy.h"

namespace tf_ext {

class UnseenEviction : public EvictionPolicy {
 public:
  static constexpr char kName[] = "unseen";

  // Takes `unseen`, at least 1.
  static Status Make(const EvictionArgs& args,
                     std::unique_ptr<const EvictionPolicy>* policy) {
    if (args.unseen < 1) {
      return Invalid("unseen is ", args.unseen, "; it must be at least 1.");
    }
    *policy = std::make_unique<UnseenEviction>(args.unseen);
    return Status::Ok();
  }

  explicit UnseenEviction(int64_t age) : age_(age) {}

  Fields fields() const override { return {true, 0}; }

  bool Evicts(const EvictionRow& row) const override { return row.age >= age_; }

 private:
  const int64_t age_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_EVICTION_UNSEEN_H_
