// SPDX-License-Identifier: Apache-2.0
// Which signs get a row when they are pushed.
//
// Each policy is a header of its own, with its name, the keys of its
// configuration and its decision; policies.cc lists them. All other code uses
// this interface, and none asks which policy it is.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_POLICY_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status.h"
#include "cc/core/table/admission/admission_counters.h"
#include "cc/core/table/config_lines.h"

namespace tf_ext {

// A sign without a row, in a push.
struct AbsentSign {
  int64_t sign;
  uint64_t hash;        // TableHash(sign)
  int64_t occurrences;  // at least 1
  uint64_t key;         // of the table's seed and the step, for random bits
};

// Immutable, and shared by all copies of a table's configuration.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;

  virtual const char* name() const = 0;  // admission=<name>
  // Reads the lines with the keys "admission.<key>", writes them, and checks
  // what they say.
  virtual Status Read(Lines* lines) = 0;
  virtual void Write(std::map<std::string, std::string>* lines) const = 0;
  virtual Status Check() const = 0;

  // Whether the sign gets a row. Called with the stripe locked, once for each
  // item of the batch whose sign has no row. `counters`: of the stripe; a sign
  // that gets a row need not be removed.
  virtual bool Admits(const AbsentSign& absent,
                      AdmissionCounters* counters) const = 0;

  // The highest count that a sign without a row can have; -1: the policy counts
  // nothing.
  virtual int most_count() const { return -1; }
  // The period of a step, of those that counters are forgotten by.
  virtual int64_t PeriodOf(int64_t) const { return 0; }
};

// Reads `admission` and the lines of the policy; nullptr without `admission`.
Status ReadAdmission(Lines* lines,
                     std::shared_ptr<const AdmissionPolicy>* admission);

// The decisions of one push.
class PushAdmission {
 public:
  // statistics: [batch, width], of which the first column is how often each
  // sign occurs; nullptr: once. `period`: not before that of `step`.
  PushAdmission(const AdmissionPolicy& policy, uint64_t seed, int64_t step,
                int64_t period, const float* statistics, int64_t width)
      : policy_(policy),
        key_(Mix64(Mix64(seed ^ 0x5851f42d4c957f2du) +
                   static_cast<uint64_t>(step))),
        period_(period),
        statistics_(statistics),
        width_(width) {}

  int64_t period() const { return period_; }

  bool Admits(int64_t sign, uint64_t hash, int64_t position,
              AdmissionCounters* counters) const {
    const int64_t occurrences = Occurrences(position);
    return occurrences > 0 &&
           policy_.Admits({sign, hash, occurrences, key_}, counters);
  }

 private:
  // The occurrences of the sign at a position of the batch, rounded.
  int64_t Occurrences(int64_t position) const {
    if (statistics_ == nullptr) return 1;
    constexpr double kMost = int64_t{1} << 53;
    const double count = statistics_[position * width_];
    return static_cast<int64_t>(std::min(count, kMost) + 0.5);
  }

  const AdmissionPolicy& policy_;
  const uint64_t key_;
  const int64_t period_;
  const float* const statistics_;
  const int64_t width_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_POLICY_H_
