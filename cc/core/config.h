// What a table is: its dim, its initializer and its update rule.
//
// The text form is what the SparseTableHandle op carries as an attribute and
// what a checkpoint keeps: one "key=value" a line, keys sorted, values without
// a newline; numbers in the shortest form that reads back exactly. Example:
//
//   dim=16
//   dtype=float32
//   hash_version=1
//   initializer=normal
//   initializer.mean=0
//   initializer.stddev=0.05
//   name=deep
//   optimizer=adam
//   optimizer.bias_correction=row
//   seed=17
#ifndef TF_EXT_CC_CORE_CONFIG_H_
#define TF_EXT_CC_CORE_CONFIG_H_

#include <cstdint>
#include <string>

#include "cc/core/status.h"

namespace tf_ext {

enum class InitializerKind {
  kZeros,            // no parameter
  kConstant,         // initializer.value
  kUniform,          // initializer.minval, initializer.maxval: [minval, maxval)
  kNormal,           // initializer.mean, initializer.stddev
  kTruncatedNormal,  // the same; values beyond two stddev do not occur
};

struct InitializerConfig {
  InitializerKind kind = InitializerKind::kZeros;
  float a = 0;  // value, minval or mean
  float b = 0;  // maxval or stddev
};

enum class RuleKind {
  kSgd,             // optimizer=sgd
  kMomentum,        // optimizer=momentum
  kAdagrad,         // optimizer=adagrad
  kRowWiseAdagrad,  // optimizer=row_wise_adagrad
  kAdam,            // optimizer=adam
  kFtrl,            // optimizer=ftrl
  kRmsprop,         // optimizer=rmsprop
  kNone,            // optimizer=none: no slots, and pushes are refused
};

// The part of an update rule that decides which fields a row has and how they
// start. All that may change during training (learning rate, betas, ...) is
// sent with each push instead: see update_rule.h.
struct RuleConfig {
  RuleKind kind = RuleKind::kSgd;
  // adagrad, row_wise_adagrad, ftrl: start value of the accumulator.
  // Text key: optimizer.initial_accumulator_value
  float initial_accumulator_value = 0.1f;
  // adam: "row" (a step count in each row) or "global" (the step sent with the
  // push). Text key: optimizer.bias_correction
  bool bias_correction_by_row = true;
  // rmsprop: keep a mean-gradient field. Text key: optimizer.centered (0 or 1)
  bool centered = false;
  // rmsprop: keep a momentum field. Text key: optimizer.momentum_field (0|1)
  bool momentum_field = false;
};

struct TableConfig {
  // A label; decides the table id, no lookup. 1 to 200 bytes, no control
  // characters.
  std::string name;
  int64_t dim = 0;  // 1 .. 65,536
  std::string dtype = "float32";
  uint64_t seed = 0;
  int hash_version = 1;
  InitializerConfig initializer;
  RuleConfig rule;
};

inline constexpr int64_t kMaxDim = 65536;
inline constexpr int64_t kMaxNameBytes = 200;

// Ranges of all values; an error names the key, its value and what is allowed.
Status CheckTableConfig(const TableConfig& config);

// Reads the text form, lines in any order. Unknown or repeated keys, missing
// `name`, `dim`, `optimizer`, `initializer` or a parameter of the initializer,
// and values out of range are errors that name key and value. Other missing
// keys take the defaults above. `config` is only written on success.
Status ParseTableConfig(const std::string& text, TableConfig* config);

// The canonical text form: Parse(ToText(c)) == c, for a `c` that passes
// CheckTableConfig.
std::string TableConfigToText(const TableConfig& config);

// An error that names both values of the first difference in identity (dim,
// dtype, fields, seed, initializer, hash_version) between a table and rows
// written by another one; Ok if rows can move between them. Names and start
// values of slots may differ.
Status CheckSameIdentity(const TableConfig& table, const TableConfig& other);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_CONFIG_H_
