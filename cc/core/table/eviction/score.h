// SPDX-License-Identifier: Apache-2.0
// Evicts rows with show_weight * show + click_weight * click < threshold, and
// those that were not pushed for a time, or only rows to which both applies.
#ifndef TF_EXT_CC_CORE_TABLE_EVICTION_SCORE_H_
#define TF_EXT_CC_CORE_TABLE_EVICTION_SCORE_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/support/message.h"
#include "cc/core/table/eviction/policy.h"

namespace tf_ext {

class ScoreEviction : public EvictionPolicy {
 public:
  static constexpr char kName[] = "score";

  // Takes `score`: threshold, show_weight and click_weight; `unseen`, 0 for no
  // age; and `require_all`.
  static Status Make(const EvictionArgs& args,
                     std::unique_ptr<const EvictionPolicy>* policy) {
    if (args.score.size() != 3) {
      return Invalid(
          "score must be of shape [0] or [3] (threshold, show_weight and "
          "click_weight), but its shape is [",
          std::to_string(args.score.size()), "].");
    }
    for (const double value : args.score) {
      if (std::isfinite(value)) continue;
      return Invalid(
          "score has the value ", std::to_string(value),
          "; threshold, show_weight and click_weight must be finite.");
    }
    if (args.unseen < 0) {
      return Invalid("unseen is ", std::to_string(args.unseen),
                     "; it must be at least 0.");
    }
    *policy = std::make_unique<ScoreEviction>(args);
    return Status::Ok();
  }

  explicit ScoreEviction(const EvictionArgs& args)
      : threshold_(args.score[0]),
        show_weight_(args.score[1]),
        click_weight_(args.score[2]),
        unseen_(args.unseen),
        require_all_(args.require_all) {}

  Fields fields() const override {
    return {unseen_ != 0, click_weight_ != 0 ? 2 : 1};
  }

  bool Evicts(const EvictionRow& row) const override {
    double score = show_weight_ * row.show;
    if (click_weight_ != 0) score += click_weight_ * row.click;
    // Also if the score is NaN, which only imported rows can have.
    const bool low = !(score >= threshold_);
    if (unseen_ == 0) return low;
    const bool old = row.age >= unseen_;
    return require_all_ ? old && low : old || low;
  }

 private:
  const double threshold_;
  const double show_weight_;
  const double click_weight_;
  const int64_t unseen_;
  const bool require_all_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_EVICTION_SCORE_H_
