// SPDX-License-Identifier: Apache-2.0
// Admits signs that were pushed `n` times, counting occurrences in batches.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_COUNT_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_COUNT_H_

#include <cstdint>
#include <map>
#include <string>

#include "cc/core/table/admission/policy.h"

namespace tf_ext {

class CountAdmission : public AdmissionPolicy {
 public:
  // n: 1 .. 255. forget: steps in a period; 0: nothing is forgotten.
  explicit CountAdmission(int n = 1, int64_t forget = 0)
      : n_(n), forget_(forget) {}

  const char* name() const override { return "count"; }

  Status Read(Lines* lines) override {
    TF_EXT_RETURN_IF_ERROR(
        lines->TakeRequiredNumber("admission.n", kAllowedN, &n_));
    std::string forget;
    if (!lines->Take(kForget, &forget)) return Status::Ok();
    if (forget == "0") return BadValue(kForget, forget, kAllowedForget);
    return Lines::ParseNumber(kForget, forget, kAllowedForget, &forget_);
  }

  void Write(std::map<std::string, std::string>* lines) const override {
    (*lines)["admission.n"] = NumberToText(n_);
    if (forget_ > 0) (*lines)[kForget] = NumberToText(forget_);
  }

  Status Check() const override {
    if (n_ < 1 || n_ > CounterLines::kMostCount) {
      return BadValue("admission.n", NumberToText(n_), kAllowedN);
    }
    if (forget_ >= 0) return Status::Ok();
    return BadValue(kForget, NumberToText(forget_), kAllowedForget);
  }

  bool Admits(const AbsentSign& absent,
              AdmissionCounters* counters) const override {
    return counters->Reaches(absent.hash, absent.occurrences, n_);
  }

  int most_count() const override { return n_ - 1; }
  int64_t PeriodOf(int64_t step) const override {
    return forget_ == 0 ? 0 : step / forget_;
  }

 private:
  static constexpr char kForget[] = "admission.forget";
  static constexpr char kAllowedN[] = "an integer from 1 to 255";
  static constexpr char kAllowedForget[] =
      "an integer from 1 to 9223372036854775807";

  int n_;
  int64_t forget_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_COUNT_H_
