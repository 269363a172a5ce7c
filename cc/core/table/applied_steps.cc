// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/applied_steps.h"

#include <new>
#include <string>
#include <utility>

namespace tf_ext {

Status AppliedSteps::Claim(const StepPush& push, bool* is_new) {
  if (push.oldest < 0 || push.number < push.oldest || push.part < 0) {
    return Status::InvalidArgument(
        "a step must have a number, an oldest number that is under way, and a "
        "part, with 0 <= oldest <= number and 0 <= part, but they are " +
        std::to_string(push.number) + ", " + std::to_string(push.oldest) +
        " and " + std::to_string(push.part) + ".");
  }
  const ExclusiveLock lock(mutex_);
  if (push.oldest > oldest_) {
    oldest_ = push.oldest;
    claimed_.erase(claimed_.begin(), claimed_.lower_bound({oldest_, 0}));
  }
  *is_new = false;
  if (push.number < oldest_) return Status::Ok();
  const std::pair<int64_t, int64_t> key(push.number, push.part);
  if (claimed_.count(key) > 0) return Status::Ok();
  if (static_cast<int64_t>(claimed_.size()) >= kMost) {
    return Status::ResourceExhausted(
        std::to_string(kMost) + " pushes of steps since " +
        std::to_string(oldest_) +
        " are remembered, the most that can be: that step has not ended.");
  }
  try {
    claimed_.insert(key);
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted(
        "out of memory while a step is remembered.");
  }
  *is_new = true;
  return Status::Ok();
}

int64_t AppliedSteps::Size() const {
  const ExclusiveLock lock(mutex_);
  return static_cast<int64_t>(claimed_.size());
}

}  // namespace tf_ext
