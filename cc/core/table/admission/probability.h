// SPDX-License-Identifier: Apache-2.0
// Admits each occurrence of a sign with probability `p`, by a hash of the
// table's seed, the sign and the step. Several occurrences in a batch are
// admitted with the probability that one of them would be.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_PROBABILITY_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_PROBABILITY_H_

#include <cstdint>
#include <map>
#include <string>

#include "cc/core/table/admission/policy.h"

namespace tf_ext {

class ProbabilityAdmission : public AdmissionPolicy {
 public:
  // p: above 0, at most 1.
  explicit ProbabilityAdmission(double p = 1) : p_(p) {}

  const char* name() const override { return "probability"; }

  Status Read(Lines* lines) override {
    return lines->TakeRequiredNumber("admission.p", kAllowedP, &p_);
  }

  void Write(std::map<std::string, std::string>* lines) const override {
    (*lines)["admission.p"] = NumberToText(p_);
  }

  Status Check() const override {
    if (p_ > 0 && p_ <= 1) return Status::Ok();
    return BadValue("admission.p", NumberToText(p_), kAllowedP);
  }

  bool Admits(const AbsentSign& absent, AdmissionCounters*) const override {
    const uint64_t hash = Mix64(absent.key ^ absent.hash);
    const double uniform = static_cast<double>(hash >> 11) * 0x1p-53;
    int64_t occurrences = absent.occurrences;
    if (occurrences == 1) return uniform < p_;
    // Not pow(), whose last digit depends on the C library.
    double none = 1;
    double factor = 1 - p_;
    for (; occurrences > 0; occurrences >>= 1, factor *= factor) {
      if (occurrences & 1) none *= factor;
    }
    return uniform < 1 - none;
  }

 private:
  static constexpr char kAllowedP[] = "a number above 0, at most 1";

  double p_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_PROBABILITY_H_
