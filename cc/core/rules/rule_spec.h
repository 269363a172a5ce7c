// SPDX-License-Identifier: Apache-2.0
// The complete description of an update rule, as one value.
//
// Each rule has a file of its own, which makes its RuleSpec: the name, the
// identity keys of the configuration text, the hyperparameters that come with
// each push and their ranges, the slots, and what is prepared for a push,
// which names the loop over rows. registry.cc lists the rules. All other code
// uses the spec; none checks which rule it is.
#ifndef TF_EXT_CC_CORE_RULES_RULE_SPEC_H_
#define TF_EXT_CC_CORE_RULES_RULE_SPEC_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/rules/field_type.h"
#include "cc/core/support/cpu.h"
#include "cc/core/support/status.h"

namespace tf_ext {

// A field of a row after its weights.
struct Slot {
  const char* name;
  FieldType type;  // of computation: a table may store floats narrower
  int64_t count;   // values in a row
  double start;    // value of a new row
};

// What a number may be; besides, it has to be finite as a float32.
struct Range {
  double low;
  bool low_allowed;
  double high;
  bool high_allowed;
  bool flag;            // 0 or 1
  const char* allowed;  // the same in words, for errors

  bool Holds(double value) const;
};

inline constexpr double kNoBound = std::numeric_limits<double>::infinity();
inline constexpr Range kNotNegative = {
    0, true, kNoBound, false, false, "0 or more and finite in float32"};
inline constexpr Range kDivisor = {
    0,
    false,
    kNoBound,
    false,
    false,
    "more than 0 and finite in float32, because the rule divides by it"};
inline constexpr Range kNotPositive = {
    -kNoBound, false, 0, true, false, "0 or less and finite in float32"};
inline constexpr Range kBelowOne = {0,     true,  1,
                                    false, false, "at least 0 and less than 1"};
inline constexpr Range kZero = {0,    true,  0,
                                true, false, "0, as the table's l2 does it"};
inline constexpr Range kFlag = {0, true, 1, true, true, "0 or 1"};

// A number that comes with each push, and may change during training.
struct Hyperparameter {
  const char* name;
  Range range;
  double start;  // the default of Keras; NaN: there is none
};

// All rules that train begin with these two. weight_decay 0 is none; otherwise
// w -= w * weight_decay * learning_rate before the rule, as Keras does, on
// pushed rows only.
inline constexpr Hyperparameter kLearningRate = {
    "learning_rate", kNotNegative, std::numeric_limits<double>::quiet_NaN()};
inline constexpr Hyperparameter kWeightDecay = {"weight_decay", kNotNegative,
                                                0};

// The key optimizer.<name> of the configuration text: it decides which fields
// a row has, or how they start.
struct IdentityKey {
  const char* name;
  double start;  // the default; of a flag, 0 or 1
  // The texts of a flag's 0 and 1; nullptr: the key is a number.
  const char* off = nullptr;
  const char* on = nullptr;
  // Of a number that is not rounded to a float32; nullptr: it is, and is finite
  // and at least 0.
  const Range* range = nullptr;

  bool is_flag() const { return off != nullptr; }
};

struct RuleSpec;

// A rule, and the values of its identity keys.
class RuleConfig {
 public:
  RuleConfig();  // sgd
  explicit RuleConfig(const RuleSpec& spec);

  const RuleSpec& spec() const { return *spec_; }
  double Number(const std::string& key) const;
  float Get(const std::string& key) const {
    return static_cast<float>(Number(key));
  }
  RuleConfig& Set(const std::string& key, double value);
  std::vector<Slot> Slots(int64_t dim) const;

 private:
  const RuleSpec* spec_;
  std::vector<double> identity_;  // in the order of spec().identity
};

// Where a field of a row is, in bytes from its start; or, for a rule, from the
// start of the copies in float32 (narrow.h).
using FieldOffset = std::pair<std::string, int64_t>;

// One push to a table. Names that the rule's spec does not have, or rows no
// field of, end the process: only the rule's own file asks.
struct PushInput {
  const RuleConfig& config;
  const std::vector<FieldOffset>& offsets;
  const int64_t dim;
  const SimdLevel simd;
  const double* const hyperparameters;  // in the order of the spec
  const int64_t step;                   // from 1

  double Number(const char* name) const;
  float Float(const char* name) const {
    return static_cast<float>(Number(name));
  }
  int64_t Offset(const char* field) const;
};

// Updates row i, whose weights and slots are at the fields' offsets from
// weights[i] and slots[i], with gradients + gradient_index[i] * dim, for i in
// [0, count).
using UpdateFn = void (*)(const void* args, uint8_t* const* weights,
                          uint8_t* const* slots, const float* gradients,
                          const int64_t* gradient_index, int64_t count);

// A push made ready: the loop, and the arguments that it is called with.
struct PreparedPush {
  std::shared_ptr<const void> args;
  UpdateFn update = nullptr;
};

// What Adam's moments are made of.
struct AdamMoments {
  double beta_1;
  double beta_2;
  double epsilon;
  // Whether bias correction takes the number of a table's pushes, and not the
  // step that is sent with each.
  bool counts_pushes = false;
};

struct RuleSpec {
  const char* name;
  std::vector<IdentityKey> identity;
  std::vector<Hyperparameter> hyperparameters;
  // nullptr: none.
  std::vector<Slot> (*slots)(const RuleConfig& config, int64_t dim);
  // What ranges cannot say; nullptr: nothing.
  Status (*check)(const PushInput& push);
  // nullptr: every push is refused, with the sentence after it.
  PreparedPush (*prepare)(const PushInput& push);
  const char* refusal = nullptr;
  // Of the identity keys, what their ranges cannot say; nullptr: nothing.
  Status (*check_config)(const RuleConfig& config) = nullptr;
  // Of a rule that also moves the rows that are absent from a push
  // (absent_history.h); nullptr: they stay as they are.
  AdamMoments (*absent)(const RuleConfig& config) = nullptr;
};

// All rules, in the order in which errors list them.
const std::vector<const RuleSpec*>& AllRules();
// nullptr if there is none of that name.
const RuleSpec* FindRule(const std::string& name);
std::string RuleNames();  // "sgd, momentum, ..."

// The shortest text that reads back as the same number.
std::string NumberText(double value);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_RULE_SPEC_H_
