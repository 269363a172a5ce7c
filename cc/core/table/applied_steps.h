// SPDX-License-Identifier: Apache-2.0
// Which steps have updated a table, so that one that runs again changes
// nothing.
#ifndef TF_EXT_CC_CORE_TABLE_APPLIED_STEPS_H_
#define TF_EXT_CC_CORE_TABLE_APPLIED_STEPS_H_

#include <cstdint>
#include <set>
#include <utility>

#include "cc/core/support/mutex.h"
#include "cc/core/support/status.h"

namespace tf_ext {

// A push of a step. Whoever schedules steps gives each a number of its own,
// also where it runs again.
struct StepPush {
  int64_t number = 0;  // at least 0
  // All steps of smaller numbers have ended, in the sense that none of them
  // will be needed again; at most `number`.
  int64_t oldest = 0;
  // Tells the pushes of a step apart; at least 0.
  int64_t part = 0;
};

// Thread-safe.
class AppliedSteps {
 public:
  // The most pushes that are remembered, some 16 MB. They are those of steps
  // that are under way, so only a caller that never moves `oldest` gets there.
  static constexpr int64_t kMost = int64_t{1} << 18;

  // `*is_new`: whether a push has not been claimed before. Those of steps below
  // an `oldest` that was given before are not new.
  Status Claim(const StepPush& push, bool* is_new);
  // How many are remembered.
  int64_t Size() const;

 private:
  mutable Mutex mutex_;
  int64_t oldest_ TF_EXT_GUARDED_BY(mutex_) = 0;
  std::set<std::pair<int64_t, int64_t>> claimed_ TF_EXT_GUARDED_BY(mutex_);
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_APPLIED_STEPS_H_
