// SPDX-License-Identifier: Apache-2.0
// Admits one sign in `k`, by its hash, so that a part of the ids is trained.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_EVERY_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_EVERY_H_

#include <cstdint>
#include <map>
#include <string>

#include "cc/core/table/admission/policy.h"

namespace tf_ext {

class EveryAdmission : public AdmissionPolicy {
 public:
  const char* name() const override { return "every"; }

  Status Read(Lines* lines) override {
    return lines->TakeRequiredNumber("admission.k", kAllowed, &k_);
  }

  void Write(std::map<std::string, std::string>* lines) const override {
    (*lines)["admission.k"] = NumberToText(k_);
  }

  Status Check() const override {
    if (k_ >= 1) return Status::Ok();
    return BadValue("admission.k", NumberToText(k_), kAllowed);
  }

  bool Admits(const AbsentSign& absent, AdmissionCounters*) const override {
    return Mix64(absent.hash) % static_cast<uint64_t>(k_) == 0;
  }

 private:
  static constexpr char kAllowed[] = "an integer of at least 1";

  int64_t k_ = 1;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_EVERY_H_
