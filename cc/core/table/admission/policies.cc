// SPDX-License-Identifier: Apache-2.0
// The list of admission policies.
#include <memory>
#include <string>
#include <utility>

#include "cc/core/table/admission/count.h"
#include "cc/core/table/admission/policy.h"
#include "cc/core/table/admission/probability.h"

namespace tf_ext {
namespace {

template <class... Policies>
Status ReadOneOf(Lines* lines,
                 std::shared_ptr<const AdmissionPolicy>* admission) {
  std::string name;
  if (!lines->Take("admission", &name)) return Status::Ok();
  std::shared_ptr<AdmissionPolicy> found;
  std::string allowed;
  for (std::shared_ptr<AdmissionPolicy> each :
       {std::shared_ptr<AdmissionPolicy>(std::make_shared<Policies>())...}) {
    if (!allowed.empty()) allowed += " or ";
    allowed += std::string("\"") + each->name() + "\"";
    if (each->name() == name) found = std::move(each);
  }
  if (found == nullptr) return BadValue("admission", name, allowed);
  *admission = found;
  return found->Read(lines);
}

}  // namespace

Status ReadAdmission(Lines* lines,
                     std::shared_ptr<const AdmissionPolicy>* admission) {
  return ReadOneOf<CountAdmission, ProbabilityAdmission>(lines, admission);
}

}  // namespace tf_ext
