// SPDX-License-Identifier: Apache-2.0
// Rows of one update rule, without a table.
#ifndef TF_EXT_CC_CORE_RULES_UPDATE_RULE_TEST_UTIL_H_
#define TF_EXT_CC_CORE_RULES_UPDATE_RULE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/update_rule.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

inline TableConfig Config(const RuleConfig& rule, int64_t dim) {
  TableConfig config;
  config.name = "t";
  config.dim = dim;
  config.rule = rule;
  return config;
}

inline bool HasKey(const RuleConfig& rule, const std::string& key) {
  for (const IdentityKey& each : rule.spec().identity) {
    if (key == each.name) return true;
  }
  return false;
}

inline RuleConfig Rule(const std::string& name) {
  constexpr char kStart[] = "initial_accumulator_value";
  RuleConfig rule(*FindRule(name));
  if (HasKey(rule, kStart)) rule.Set(kStart, 0.2f);
  return rule;
}

inline RuleConfig AdamRule(bool by_row) {
  return Rule("adam").Set("bias_correction", by_row);
}

inline UpdateRule MakeRule(const TableConfig& config) {
  return UpdateRule(config.rule, config.dim, RowLayout(config).offsets());
}

// New rows of a table, one after the other, with weights 0.
class Rows {
 public:
  Rows(const RowLayout& layout, int64_t count)
      : layout_(layout), count_(count), buffer_(count * layout.stride() / 8) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(row(i), &i, sizeof(i));  // the sign
      for (const Field& field : layout.fields()) {
        for (int64_t j = 0; j < field.count; ++j) SetStart(i, field, j);
      }
    }
  }

  uint8_t* row(int64_t i) {
    return reinterpret_cast<uint8_t*>(buffer_.data()) + i * layout_.stride();
  }
  float* Floats(int64_t i, const std::string& field) {
    return reinterpret_cast<float*>(row(i) + layout_.Find(field)->offset);
  }
  int32_t* Step(int64_t i) {
    return reinterpret_cast<int32_t*>(row(i) + layout_.Find("step")->offset);
  }
  std::vector<uint8_t*> Pointers() {
    std::vector<uint8_t*> pointers;
    for (int64_t i = 0; i < count_; ++i) pointers.push_back(row(i));
    return pointers;
  }
  const std::vector<uint64_t>& bits() const { return buffer_; }

 private:
  void SetStart(int64_t i, const Field& field, int64_t j) {
    uint8_t* at = row(i) + field.offset + j * FieldTypeBytes(field.type);
    if (field.type == FieldType::kInt32) {
      const int32_t start = static_cast<int32_t>(field.start);
      std::memcpy(at, &start, sizeof(start));
    } else {
      const float start =
          field.name == "weights" ? 0.0f : static_cast<float>(field.start);
      std::memcpy(at, &start, sizeof(start));
    }
  }

  const RowLayout layout_;
  const int64_t count_;
  std::vector<uint64_t> buffer_;  // rows are aligned to 8 bytes
};

// A table's rule with some rows.
class Trainer {
 public:
  Trainer(const RuleConfig& rule, int64_t dim, int64_t count)
      : dim_(dim),
        count_(count),
        config_(Config(rule, dim)),
        layout_(config_),
        rule_(config_.rule, dim, layout_.offsets()),
        rows_(layout_, count) {}

  Rows& rows() { return rows_; }
  const UpdateRule& rule() const { return rule_; }
  const RowLayout& layout() const { return layout_; }

  // gradients: [count, dim], one row a row.
  void Push(const std::vector<double>& hyperparameters, int64_t step,
            const std::vector<float>& gradients) {
    const int64_t size = static_cast<int64_t>(hyperparameters.size());
    ASSERT_TRUE(IsOk(rule_.Check(hyperparameters.data(), size, step)));
    std::vector<int64_t> index(count_);
    for (int64_t i = 0; i < count_; ++i) index[i] = i;
    rule_.Prepare(hyperparameters.data(), size, step)
        .Update(rows_.Pointers().data(), gradients.data(), index.data(),
                count_);
  }

  // Weights and slots as trained rows have them.
  void Randomise(std::mt19937* random) {
    std::normal_distribution<float> normal(0.0f, 0.5f);
    for (int64_t i = 0; i < count_; ++i) {
      for (const Field& field : layout_.fields()) {
        if (field.type == FieldType::kInt32) {
          *rows_.Step(i) = static_cast<int32_t>((*random)() % 1000);
          continue;
        }
        const bool square = field.name == "accumulator" || field.name == "v" ||
                            field.name == "velocity";
        for (int64_t j = 0; j < field.count; ++j) {
          const float value = normal(*random);
          // Above the square of average_gradient, as a velocity is.
          rows_.Floats(i, field.name)[j] =
              square ? value * value + 4.0f : value;
        }
      }
    }
  }

 private:
  const int64_t dim_;
  const int64_t count_;
  const TableConfig config_;
  const RowLayout layout_;
  const UpdateRule rule_;
  Rows rows_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_UPDATE_RULE_TEST_UTIL_H_
