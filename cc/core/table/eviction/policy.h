// SPDX-License-Identifier: Apache-2.0
// Which rows an eviction removes.
//
// Each policy is a header of its own, with its arguments, the fields that it
// reads and its decision; policies.cc lists them. All other code uses this
// interface, and none asks which policy it is.
#ifndef TF_EXT_CC_CORE_TABLE_EVICTION_POLICY_H_
#define TF_EXT_CC_CORE_TABLE_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/support/status.h"

namespace tf_ext {

// The arguments of an eviction. Each policy says what it takes.
struct EvictionArgs {
  int64_t unseen = 0;
  int64_t capacity = -1;
  bool by_show = false;
  std::vector<double> score;
  bool require_all = false;
  // The name of a policy; "": by the arguments above, `capacity` if it is not
  // -1, `score` if it is not empty, or otherwise `unseen`.
  std::string policy;
};

// A row as policies see it. Fields that a policy does not read may be 0.
struct EvictionRow {
  // The time of the last push, not before 0. Of unknown age: row_time.h.
  int32_t last_seen;
  // Between that and the eviction; below 0 if the row is pushed meanwhile.
  int64_t age;
  float show;
  float click;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The fields that rows must have: whether `last_seen`, and how many of
  // kStatisticsFields.
  struct Fields {
    bool last_seen;
    int statistics;
  };
  virtual Fields fields() const = 0;

  // Whether the row is removed.
  virtual bool Evicts(const EvictionRow&) const { return false; }

  // The number of rows that remain at most; -1: any. Beyond it, those with the
  // lowest ranks are removed. Among equal ranks, a hash of the sign decides.
  virtual int64_t capacity() const { return -1; }
  virtual uint32_t Rank(const EvictionRow&) const { return 0; }
};

// An error names the arguments that are not allowed, or do not go together.
Status MakeEviction(const EvictionArgs& args,
                    std::unique_ptr<const EvictionPolicy>* policy);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_EVICTION_POLICY_H_
