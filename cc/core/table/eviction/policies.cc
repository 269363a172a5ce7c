// SPDX-License-Identifier: Apache-2.0
// The list of eviction policies.
#include <memory>
#include <string>

#include "cc/core/support/message.h"
#include "cc/core/table/eviction/capacity.h"
#include "cc/core/table/eviction/policy.h"
#include "cc/core/table/eviction/score.h"
#include "cc/core/table/eviction/unseen.h"

namespace tf_ext {
namespace {

struct Entry {
  const char* name;
  Status (*make)(const EvictionArgs& args,
                 std::unique_ptr<const EvictionPolicy>* policy);
};

constexpr Entry kPolicies[] = {
    {UnseenEviction::kName, UnseenEviction::Make},
    {CapacityEviction::kName, CapacityEviction::Make},
    {ScoreEviction::kName, ScoreEviction::Make},
};

// Of arguments without a name.
Status NameOf(const EvictionArgs& args, std::string* name) {
  const bool by_capacity = args.capacity != -1;
  const bool by_score = !args.score.empty();
  *name = by_capacity ? CapacityEviction::kName
          : by_score  ? ScoreEviction::kName
                      : UnseenEviction::kName;
  if ((args.unseen != 0 || by_score) != by_capacity && args.unseen >= 0 &&
      args.capacity >= -1) {
    return Status::Ok();
  }
  return Invalid(
      "unseen is ", args.unseen, " and capacity is ", args.capacity,
      (by_score ? ", and there is a score" : ""),
      "; either unseen must be at least 1 and capacity -1, or unseen 0 and "
      "capacity at least 0; a score goes with capacity -1, and with unseen "
      "0 or more.");
}

}  // namespace

Status MakeEviction(const EvictionArgs& args,
                    std::unique_ptr<const EvictionPolicy>* policy) {
  std::string name = args.policy;
  if (name.empty()) {
    TF_EXT_RETURN_IF_ERROR(NameOf(args, &name));
  }
  std::string allowed;
  for (const Entry& entry : kPolicies) {
    if (name == entry.name) return entry.make(args, policy);
    if (!allowed.empty()) allowed += ", ";
    allowed += entry.name;
  }
  return Invalid("policy is \"", name, "\"; it must be empty or one of ",
                 allowed, ".");
}

}  // namespace tf_ext
