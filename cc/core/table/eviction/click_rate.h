// SPDX-License-Identifier: Apache-2.0
// Evicts rows whose click / show is below a rate.
#ifndef TF_EXT_CC_CORE_TABLE_EVICTION_CLICK_RATE_H_
#define TF_EXT_CC_CORE_TABLE_EVICTION_CLICK_RATE_H_

#include <memory>

#include "cc/core/table/eviction/policy.h"

namespace tf_ext {

class ClickRateEviction : public EvictionPolicy {
 public:
  static constexpr char kName[] = "click_rate";

  // Takes `score`: the rate.
  static Status Make(const EvictionArgs& args,
                     std::unique_ptr<const EvictionPolicy>* policy) {
    if (args.score.size() != 1 || !(args.score[0] >= 0)) {
      return Status::InvalidArgument("score must be a rate of at least 0.");
    }
    *policy = std::make_unique<ClickRateEviction>(args.score[0]);
    return Status::Ok();
  }

  explicit ClickRateEviction(double rate) : rate_(rate) {}

  Fields fields() const override { return {false, 2}; }

  bool Evicts(const EvictionRow& row) const override {
    return row.click < rate_ * row.show;
  }

 private:
  const double rate_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_EVICTION_CLICK_RATE_H_
