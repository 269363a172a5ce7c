// SPDX-License-Identifier: Apache-2.0
// The configuration of a table: its dim, initializer and update rule.
//
// The text form is what the SparseTableHandle op carries as an attribute and
// what a checkpoint keeps: one "key=value" a line, keys sorted, values without
// a newline; numbers in the shortest form that reads back exactly. Example:
//
//   admission=count                   // only if not all signs get a row
//   admission.forget=1000000
//   admission.n=3
//   dim=16
//   dtype=float32
//   hash_version=1
//   initializer=normal
//   initializer.mean=0
//   initializer.stddev=0.05
//   l1=0.0001                         // only if not 0; l2 in the same way
//   last_seen=step                    // only if rows have the field
//   name=deep
//   optimizer=adam
//   optimizer.bias_correction=row
//   seed=17
//   slot_dtype=bfloat16               // only if not float32
//   statistics=show,click             // only if rows have these fields
//   unknown=shared                    // only if not the initial weights
//   unknown.buckets=100               // of shared rows, only if not 1
#ifndef TF_EXT_CC_CORE_TABLE_CONFIG_H_
#define TF_EXT_CC_CORE_TABLE_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/rule_spec.h"
#include "cc/core/support/status.h"
#include "cc/core/table/admission/policy.h"
#include "cc/core/table/unknown_rows.h"

namespace tf_ext {

// Whether rows record the time of their last push, and in which unit.
enum class LastSeen { kNone, kStep, kSecond };

struct TableConfig {
  // A label; decides the table id, no lookup. 1 to 200 bytes, no control
  // characters.
  std::string name;
  int64_t dim = 0;  // 1 .. 65,536
  // How weights, and the floats of the rule's slots, are stored.
  FieldType dtype = FieldType::kFloat32;       // or kFloat16, kBfloat16
  FieldType slot_dtype = FieldType::kFloat32;  // or kBfloat16
  uint64_t seed = 0;
  int hash_version = 1;
  InitializerConfig initializer;
  // What decides which fields a row has and how they start. All that may
  // change during training (learning rate, betas, ...) is sent with each push.
  RuleConfig rule;
  LastSeen last_seen = LastSeen::kNone;
  // The number of kStatisticsFields that rows have.
  int statistics = 0;
  // Which signs get a row; nullptr: all that are pushed.
  std::shared_ptr<const AdmissionPolicy> admission;
  // What is read of absent signs.
  UnknownRows unknown;
  // What shrinks all rows in each step; see rules/shrinkage.h.
  double l2 = 0;
  double l1 = 0;

  // Whether rows hold how far they have been shrunk.
  bool shrinks() const { return l2 > 0 || l1 > 0; }
  // Whether rows hold up to which step they have been moved.
  bool moves_absent_rows() const { return rule.spec().absent != nullptr; }
  // The number of statistics that a push has for each sign; 0: none are used.
  int64_t statistics_width() const {
    if (statistics > 0) return statistics;
    return admission != nullptr || unknown.is_shared() ? 1 : 0;
  }
};

// How often a row's sign occurred in training, and a sum over the occurrences;
// see row_statistics.h.
inline constexpr const char* kStatisticsFields[] = {"show", "click"};
inline constexpr int kMostStatistics = 2;

// The names of the first `count` of the fields, separated by commas.
std::string StatisticsToText(int64_t count);

inline constexpr int64_t kMaxDim = 65536;
inline constexpr int64_t kMaxNameBytes = 200;

// Ranges of all values; an error names the key, its value and what is allowed.
Status CheckTableConfig(const TableConfig& config);

// Reads the text form, lines in any order: `optimizer`, and its identity keys
// as optimizer.<key> (rule_spec.h). Unknown or repeated keys, missing
// `name`, `dim`, `optimizer`, `initializer` or a parameter of the initializer,
// and values out of range are errors that name key and value. Other missing
// keys take the defaults above. `config` is only written on success.
Status ParseTableConfig(const std::string& text, TableConfig* config);

// The same for the lines that say the update rule, and no others.
Status ParseRuleConfig(const std::string& text, RuleConfig* rule);

// The canonical text form: Parse(ToText(c)) == c, for a `c` that passes
// CheckTableConfig.
std::string TableConfigToText(const TableConfig& config);

// An error that names both values of the first difference in identity (dim,
// dtypes, fields, l1, l2, seed, initializer, hash_version) between a table and
// rows written by another one; Ok if rows can move between them. Names, start
// values of slots, admission and what is read for absent signs may differ.
Status CheckSameIdentity(const TableConfig& table, const TableConfig& other);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_CONFIG_H_
