// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/singles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/bags/combine.h"
#include "cc/core/support/status_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

void TwoThreads(int64_t blocks, const std::function<void(int64_t)>& fn) {
  std::thread odd([&] {
    for (int64_t b = 1; b < blocks; b += 2) fn(b);
  });
  for (int64_t b = 0; b < blocks; b += 2) fn(b);
  odd.join();
}

// Four columns, one of each combiner, whose bags have a value each.
struct Input {
  Input(int64_t batch, int64_t dim) : inverse(4 * batch), splits{0} {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    bags.combiners = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn,
                      Combiner::kMax};
    bags.batch = batch;
    bags.dim = dim;
    bags.unique = batch + 3;
    bags.n = 4 * batch;
    for (int64_t i = 0; i < bags.unique * dim; ++i) {
      rows.push_back(uniform(random));
    }
    // The first rows occur often, the last one never.
    for (int32_t& row : inverse) {
      row = random() % (random() % 2 == 0 ? bags.unique - 1 : 5);
      splits.push_back(static_cast<int64_t>(splits.size()));
    }
    bags.rows = rows.data();
    bags.inverse = inverse.data();
    bags.row_splits = splits.data();
  }
  Input(const Input&) = delete;

  Bags bags;
  std::vector<float> rows;
  std::vector<int32_t> inverse;
  std::vector<int64_t> splits;
};

std::vector<float> Combine(const Bags& bags, const ParallelFor& parallel_for) {
  EXPECT_TRUE(IsOk(CheckBags(bags)));
  std::vector<float> out(bags.batch * bags.columns() * bags.dim, NAN);
  CombineBags(bags, parallel_for, out.data());
  return out;
}

std::vector<float> Gradient(const Bags& bags, const std::vector<float>& of,
                            const ParallelFor& parallel_for,
                            float* weights = nullptr) {
  std::vector<float> rows(bags.unique * bags.dim, NAN);
  EXPECT_TRUE(IsOk(CombineBagsGradient(bags, of.data(), parallel_for,
                                       rows.data(), weights)));
  return rows;
}

TEST(SinglesTest, SameBitsAsAnyOtherBags) {
  for (const int64_t dim : {1, 8, 16, 19}) {
    SCOPED_TRACE(testing::Message() << "dim " << dim);
    const Input input(5000, dim);
    Bags bags = input.bags;
    const std::vector<float> combined = Combine(bags, SerialFor);
    const std::vector<float> gradient = Gradient(bags, combined, SerialFor);
    bags.singles = HaveOneValueEach(bags);
    ASSERT_TRUE(bags.singles);
    for (const ParallelFor& parallel_for :
         {ParallelFor(SerialFor), ParallelFor(TwoThreads)}) {
      EXPECT_TRUE(Combine(bags, parallel_for) == combined);
      EXPECT_TRUE(Gradient(bags, combined, parallel_for) == gradient);
    }
  }
}

// Blocks own ranges of rows, some of which are empty.
TEST(SinglesTest, FewRowsInManyBlocks) {
  constexpr int64_t kBatch = 30000, kDim = 16;
  for (const int64_t unique : {1, 2, 5, 9}) {
    Input input(kBatch, kDim);
    for (int32_t& row : input.inverse) row = row % unique;
    Bags bags = input.bags;
    bags.unique = unique;
    const std::vector<float> combined = Combine(bags, SerialFor);
    const std::vector<float> gradient = Gradient(bags, combined, SerialFor);
    bags.singles = true;
    int64_t most_blocks = 0;
    const auto counted = [&](int64_t blocks, const auto& fn) {
      most_blocks = std::max(most_blocks, blocks);
      TwoThreads(blocks, fn);
    };
    EXPECT_TRUE(Gradient(bags, combined, counted) == gradient) << unique;
    EXPECT_EQ(most_blocks, 8);
  }
}

TEST(SinglesTest, CopiesAndSumsByHand) {
  const Input input(300, 2);
  Bags bags = input.bags;
  bags.singles = true;
  std::vector<float> combined = Combine(bags, SerialFor);
  std::vector<float> sums(bags.unique * 2, 0);
  for (int64_t c = 0; c < 4; ++c) {
    for (int64_t b = 0; b < 300; ++b) {
      for (int64_t d = 0; d < 2; ++d) {
        const int64_t at = input.inverse[c * 300 + b] * 2 + d;
        float& value = combined[(b * 4 + c) * 2 + d];
        ASSERT_EQ(value, input.rows[at]);
        value = static_cast<float>(c + 1) / static_cast<float>(b + 1);
        sums[at] += value;
      }
    }
  }
  EXPECT_EQ(Gradient(bags, combined, SerialFor), sums);
}

TEST(SinglesTest, WeightsCount) {
  const std::vector<float> rows = {2, 3};
  const std::vector<int32_t> inverse = {0, 1};
  const std::vector<int64_t> splits = {0, 1, 2};
  const std::vector<float> weights = {0.5f, 4};
  Bags bags;
  bags.combiners = {Combiner::kSum};
  bags.batch = bags.n = bags.unique = 2;
  bags.dim = 1;
  bags.rows = rows.data();
  bags.inverse = inverse.data();
  bags.row_splits = splits.data();
  bags.weights = weights.data();
  bags.singles = HaveOneValueEach(bags);
  ASSERT_TRUE(bags.singles);
  EXPECT_EQ(Combine(bags, SerialFor), (std::vector<float>{1, 12}));
  std::vector<float> of_weights(2);
  EXPECT_EQ(Gradient(bags, {1, 10}, SerialFor, of_weights.data()),
            (std::vector<float>{0.5f, 40}));
  EXPECT_EQ(of_weights, (std::vector<float>{2, 30}));
}

TEST(SinglesTest, OneThreadIsKnown) {
  EXPECT_TRUE(IsSerial(SerialFor));
  EXPECT_FALSE(IsSerial(TwoThreads));
}

TEST(SinglesTest, OtherBagsAreNone) {
  const auto are = [](const std::vector<int64_t>& splits, int64_t values) {
    Bags bags;
    bags.combiners = {Combiner::kSum};
    bags.batch = static_cast<int64_t>(splits.size()) - 1;
    bags.n = values;
    bags.row_splits = splits.data();
    return HaveOneValueEach(bags);
  };
  EXPECT_TRUE(are({0}, 0));
  EXPECT_TRUE(are({0, 1, 2, 3}, 3));
  EXPECT_FALSE(are({0, 1, 2, 3}, 4));
  EXPECT_FALSE(are({0, 2, 2, 3}, 3));
  EXPECT_FALSE(are({0, 1, 1, 3}, 3));
  EXPECT_FALSE(are({0, 0, 3, 3}, 3));
  EXPECT_FALSE(are({1, 1, 2, 3}, 3));
  EXPECT_FALSE(are({0, 1, 2, 4}, 3));
}

}  // namespace
}  // namespace tf_ext
