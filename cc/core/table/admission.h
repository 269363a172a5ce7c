// SPDX-License-Identifier: Apache-2.0
// Which signs get a row when they are pushed.
//
// kCount: those that were pushed `n` times, counting occurrences in batches.
// kProbability: each occurrence is admitted with probability `p`, by a hash of
// the table's seed, the sign and the step. Several occurrences in a batch are
// admitted with the probability that one of them would be.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/hashing/mix.h"
#include "cc/core/table/config.h"

namespace tf_ext {

// The period of a step, for counters that are forgotten.
inline int64_t AdmissionPeriod(const AdmissionConfig& config, int64_t step) {
  return config.forget == 0 ? 0 : step / config.forget;
}

// The decisions of one push.
class PushAdmission {
 public:
  // statistics: [batch, width], of which the first column is how often each
  // sign occurs; nullptr: once. `period`: not before that of `step`.
  PushAdmission(const AdmissionConfig& config, uint64_t seed, int64_t step,
                int64_t period, const float* statistics, int64_t width)
      : config_(config),
        key_(Mix64(Mix64(seed ^ 0x5851f42d4c957f2du) +
                   static_cast<uint64_t>(step))),
        period_(period),
        statistics_(statistics),
        width_(width) {}

  AdmissionKind kind() const { return config_.kind; }
  int n() const { return config_.n; }
  int64_t period() const { return period_; }

  // The occurrences of the sign at a position of the batch, rounded.
  int64_t Occurrences(int64_t position) const {
    if (statistics_ == nullptr) return 1;
    constexpr double kMost = int64_t{1} << 53;
    const double count = statistics_[position * width_];
    return static_cast<int64_t>(std::min(count, kMost) + 0.5);
  }

  // Whether a sign is admitted by chance.
  bool Draws(int64_t sign, int64_t occurrences) const {
    const uint64_t hash = Mix64(key_ ^ TableHash(sign));
    const double uniform = static_cast<double>(hash >> 11) * 0x1p-53;
    if (occurrences == 1) return uniform < config_.p;
    // Not pow(), whose last digit depends on the C library.
    double none = 1;
    double factor = 1 - config_.p;
    for (; occurrences > 0; occurrences >>= 1, factor *= factor) {
      if (occurrences & 1) none *= factor;
    }
    return uniform < 1 - none;
  }

 private:
  const AdmissionConfig& config_;
  const uint64_t key_;
  const int64_t period_;
  const float* const statistics_;
  const int64_t width_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_H_
