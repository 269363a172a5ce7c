// SPDX-License-Identifier: Apache-2.0
// What the tests of hash_columns share.
#ifndef TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_TEST_UTIL_H_
#define TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/hash_strings.h"
#include "cc/core/support/status_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {

inline constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct Hashed {
  std::vector<int64_t> signs;
  std::vector<int64_t> row_splits;
  std::vector<float> weights;
};

// One block a thread, in no order.
inline void ThreadedFor(int64_t blocks,
                        const std::function<void(int64_t)>& fn) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < blocks; ++i) threads.emplace_back(fn, i);
  for (std::thread& thread : threads) thread.join();
}

inline Status TryHash(const std::vector<HashColumn>& columns,
                      const std::vector<HashInput>& inputs, Hashed* hashed,
                      const ParallelFor& parallel_for = SerialFor) {
  std::vector<ValueType> types;
  for (const HashInput& input : inputs) types.push_back(input.type);
  std::unique_ptr<ColumnHasher> hasher;
  TF_EXT_RETURN_IF_ERROR(ColumnHasher::Create(columns, types, &hasher));
  int64_t batch = 0;
  TF_EXT_RETURN_IF_ERROR(hasher->CheckInputs(inputs, &batch));
  hashed->row_splits.resize(columns.size() * batch + 1);
  TF_EXT_RETURN_IF_ERROR(hasher->CountSigns(inputs, batch, parallel_for,
                                            hashed->row_splits.data()));
  hashed->signs.resize(hashed->row_splits.back());
  const bool weighted = hasher->HasWeights(inputs);
  hashed->weights.resize(weighted ? hashed->signs.size() : 0);
  hasher->Hash(inputs, batch, hashed->row_splits.data(), parallel_for,
               hashed->signs.data(),
               weighted ? hashed->weights.data() : nullptr);
  return Status::Ok();
}

inline Hashed Hash(const std::vector<HashColumn>& columns,
                   const std::vector<HashInput>& inputs,
                   const ParallelFor& parallel_for = SerialFor) {
  Hashed hashed;
  EXPECT_TRUE(IsOk(TryHash(columns, inputs, &hashed, parallel_for)));
  return hashed;
}

inline std::string ErrorOf(const std::vector<HashColumn>& columns,
                           const std::vector<HashInput>& inputs) {
  Hashed hashed;
  const Status status = TryHash(columns, inputs, &hashed);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

// One bag a value, unless splits are given.
template <typename T>
HashInput Input(ValueType type, const std::vector<T>& values) {
  HashInput input;
  input.type = type;
  input.values = values.data();
  input.n = values.size();
  input.batch = values.size();
  return input;
}
inline HashInput Int64s(const std::vector<int64_t>& values) {
  return Input(ValueType::kInt64, values);
}
inline HashInput Int32s(const std::vector<int32_t>& values) {
  return Input(ValueType::kInt32, values);
}
inline HashInput Floats(const std::vector<float>& values) {
  return Input(ValueType::kFloat, values);
}
inline HashInput Strings(const std::vector<std::string>& values) {
  HashInput input = Input(ValueType::kString, values);
  SetStrings(values.data(), &input);
  return input;
}
inline HashInput Split(HashInput input, const std::vector<int64_t>& splits) {
  input.row_splits = splits.data();
  input.batch = static_cast<int64_t>(splits.size()) - 1;
  return input;
}
inline HashInput Weighted(HashInput input, const std::vector<float>& weights) {
  input.weights = weights.data();
  return input;
}

inline HashPart Part(int64_t input, int64_t bucket_size = 0) {
  HashPart part;
  part.input = input;
  part.bucket_size = bucket_size;
  return part;
}

inline HashColumn Column(const std::string& ns,
                         const std::vector<HashPart>& parts,
                         int64_t bucket_size = 0) {
  HashColumn column;
  column.ns = ns;
  column.parts = parts;
  column.bucket_size = bucket_size;
  return column;
}

inline HashColumn WithMissing(HashColumn column, const std::string& missing) {
  column.parts[0].has_missing = true;
  column.parts[0].missing = missing;
  return column;
}

inline HashColumn WithBoundaries(HashColumn column,
                                 std::vector<float> boundaries) {
  column.parts[0].boundaries = std::move(boundaries);
  return column;
}

inline HashColumn Identity(HashColumn column) {
  column.identity = true;
  return column;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_TEST_UTIL_H_
