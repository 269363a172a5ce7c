// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/combine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// For EXPECT_PRED2: prints both when it fails.
bool Says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

void FourThreads(int64_t blocks, const std::function<void(int64_t)>& fn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([=, &fn] {
      for (int64_t b = blocks - 1 - t; b >= 0; b -= 4) fn(b);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Bags that own what they point at.
struct Input {
  std::vector<Combiner> combiners;
  int64_t batch = 0;
  int64_t dim = 0;
  std::vector<float> rows;
  std::vector<int32_t> inverse;
  std::vector<int64_t> row_splits;
  std::vector<float> weights;

  int64_t unique() const { return rows.size() / dim; }
  int64_t width() const { return combiners.size() * dim; }
  Bags bags() const {
    Bags bags;
    bags.combiners = combiners;
    bags.batch = batch;
    bags.dim = dim;
    bags.unique = unique();
    bags.n = inverse.size();
    bags.rows = rows.data();
    bags.inverse = inverse.data();
    bags.row_splits = row_splits.data();
    bags.weights = weights.empty() ? nullptr : weights.data();
    return bags;
  }
};

// One column, one dim, one bag for each list of row numbers.
Input Small(Combiner combiner, const std::vector<float>& rows,
            const std::vector<std::vector<int32_t>>& bags,
            const std::vector<float>& weights = {}) {
  Input input;
  input.combiners = {combiner};
  input.batch = bags.size();
  input.dim = 1;
  input.rows = rows;
  input.row_splits = {0};
  for (const std::vector<int32_t>& bag : bags) {
    input.inverse.insert(input.inverse.end(), bag.begin(), bag.end());
    input.row_splits.push_back(input.inverse.size());
  }
  input.weights = weights;
  return input;
}

Input Random(uint64_t seed, int64_t batch, int64_t dim, bool weighted) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Input input;
  input.combiners = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn,
                     weighted ? Combiner::kMean : Combiner::kMax};
  input.batch = batch;
  input.dim = dim;
  const int64_t unique = batch + 3;
  for (int64_t i = 0; i < unique * dim; ++i) {
    input.rows.push_back(uniform(random));
  }
  input.row_splits = {0};
  for (int64_t bag = 0; bag < 4 * batch; ++bag) {
    // One in three bags has one value, some have none, the first rows occur
    // often.
    const int64_t size = bag % 3 == 0 ? 1 : random() % 6;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t range = random() % 2 == 0 ? unique - 1 : 5;
      input.inverse.push_back(random() % range);
      if (weighted) input.weights.push_back(1.5f + uniform(random));
    }
    input.row_splits.push_back(input.inverse.size());
  }
  return input;
}

std::vector<float> Combine(const Input& input,
                           const ParallelFor& parallel_for = SerialFor) {
  EXPECT_TRUE(IsOk(CheckBags(input.bags())));
  std::vector<float> out(input.batch * input.width(), NAN);
  CombineBags(input.bags(), parallel_for, out.data());
  return out;
}

struct Gradients {
  std::vector<float> rows;
  std::vector<float> weights;
};

Gradients Differentiate(const Input& input, const std::vector<float>& gradient,
                        const ParallelFor& parallel_for = SerialFor) {
  Gradients result;
  result.rows.assign(input.rows.size(), NAN);
  result.weights.assign(input.weights.size(), NAN);
  EXPECT_TRUE(IsOk(CombineBagsGradient(
      input.bags(), gradient.data(), parallel_for, result.rows.data(),
      input.weights.empty() ? nullptr : result.weights.data())));
  return result;
}

// One bag and one position, in double and in the plainest way. `rows` and
// `weights` of the bag's values.
double Reference(Combiner combiner, const std::vector<double>& rows,
                 const std::vector<double>& weights) {
  if (rows.empty()) return 0;
  double sum = 0;
  double weight_sum = 0;
  double square_sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    sum += weights[i] * rows[i];
    weight_sum += weights[i];
    square_sum += weights[i] * weights[i];
  }
  switch (combiner) {
    case Combiner::kSum:
      return sum;
    case Combiner::kMean:
      return sum / weight_sum;
    case Combiner::kSqrtn:
      return sum / std::sqrt(square_sum);
    case Combiner::kMax:
      return *std::max_element(rows.begin(), rows.end());
  }
  return NAN;
}

// Calls fn(bag, column, batch row, first value, end).
void ForEachBag(const Input& input,
                const std::function<void(int64_t c, int64_t b, int64_t begin,
                                         int64_t end)>& fn) {
  for (int64_t bag = 0; bag + 1 < static_cast<int64_t>(input.row_splits.size());
       ++bag) {
    fn(bag / input.batch, bag % input.batch, input.row_splits[bag],
       input.row_splits[bag + 1]);
  }
}

// What is added to all values of one row, and to the weight of one value.
struct Bump {
  int64_t row = -1;
  double by = 0;
  int64_t value = -1;
  double weight_by = 0;
};

double ReferenceAt(const Input& input, int64_t c, int64_t d, int64_t begin,
                   int64_t end, const Bump& bump = {}) {
  std::vector<double> rows;
  std::vector<double> weights;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = input.inverse[i];
    rows.push_back(input.rows[row * input.dim + d] +
                   (row == bump.row ? bump.by : 0));
    weights.push_back((input.weights.empty() ? 1.0 : input.weights[i]) +
                      (i == bump.value ? bump.weight_by : 0));
  }
  return Reference(input.combiners[c], rows, weights);
}

// A slope of the reference at one position of a bag, by central difference.
double SlopeAt(const Input& input, int64_t c, int64_t d, int64_t begin,
               int64_t end, int64_t row, int64_t value) {
  const double kBump = 1e-6;
  return (ReferenceAt(input, c, d, begin, end, {row, kBump, value, kBump}) -
          ReferenceAt(input, c, d, begin, end, {row, -kBump, value, -kBump})) /
         (2 * kBump);
}

TEST(CombineTest, SeveralTablesIntoPartsOfRows) {
  const std::vector<Input> tables = {Random(1, 3000, 16, false),
                                     Random(2, 3000, 1, true),
                                     Random(3, 3000, 7, false)};
  constexpr int64_t kBefore = 5;  // columns that are not written
  int64_t stride = kBefore;
  for (const Input& table : tables) stride += table.width();
  for (const bool threads : {false, true}) {
    const ParallelFor parallel_for =
        threads ? ParallelFor(FourThreads) : SerialFor;
    std::vector<float> out(3000 * stride, -1);
    std::vector<Bags> bags;
    std::vector<float*> outs;
    int64_t column = kBefore;
    for (const Input& table : tables) {
      bags.push_back(table.bags());
      outs.push_back(out.data() + column);
      column += table.width();
    }
    CombineBags(bags, parallel_for, stride, outs);
    column = kBefore;
    for (const Input& table : tables) {
      const std::vector<float> alone = Combine(table);
      for (int64_t b = 0; b < table.batch; ++b) {
        for (int64_t c = 0; c < table.width(); ++c) {
          ASSERT_EQ(out[b * stride + column + c], alone[b * table.width() + c]);
        }
      }
      column += table.width();
    }
    for (int64_t b = 0; b < 3000; ++b) {
      for (int64_t c = 0; c < kBefore; ++c) ASSERT_EQ(out[b * stride + c], -1);
    }
  }
}

TEST(CombineTest, NamesOfCombiners) {
  Combiner combiner = Combiner::kSum;
  EXPECT_TRUE(ParseCombiner("sqrtn", &combiner).ok());
  EXPECT_EQ(combiner, Combiner::kSqrtn);
  EXPECT_EQ(ParseCombiner("avg", &combiner).message(),
            "combiner is \"avg\"; it must be one of sum, mean, sqrtn, max.");
}

TEST(CombineTest, ValuesByHand) {
  const std::vector<float> rows = {1, 2, 6};
  const std::vector<std::vector<int32_t>> bags = {{0, 1, 2, 2}, {}, {1}};
  EXPECT_EQ(Combine(Small(Combiner::kSum, rows, bags)),
            (std::vector<float>{15, 0, 2}));
  EXPECT_EQ(Combine(Small(Combiner::kMean, rows, bags)),
            (std::vector<float>{3.75, 0, 2}));
  EXPECT_EQ(Combine(Small(Combiner::kSqrtn, rows, bags)),
            (std::vector<float>{7.5, 0, 2}));
  EXPECT_EQ(Combine(Small(Combiner::kMax, {-3, -2, -6}, bags)),
            (std::vector<float>{-2, 0, -2}));
}

TEST(CombineTest, WeightedValuesByHand) {
  const std::vector<float> rows = {1, 2};
  const std::vector<std::vector<int32_t>> bags = {{0, 1}, {1}, {}, {0, 1}};
  const std::vector<float> weights = {3, 4, 0.5, 1, -1};
  EXPECT_EQ(Combine(Small(Combiner::kSum, rows, bags, weights)),
            (std::vector<float>{11, 1, 0, -1}));
  // A sum of weights of zero gives zeros.
  EXPECT_EQ(Combine(Small(Combiner::kMean, rows, bags, weights)),
            (std::vector<float>{11.0f / 7, 2, 0, 0}));
  EXPECT_EQ(Combine(Small(Combiner::kSqrtn, rows, bags, weights)),
            (std::vector<float>{11.0f / 5, 2, 0, -1 / std::sqrt(2.0f)}));
}

TEST(CombineTest, GradientsByHand) {
  const std::vector<float> rows = {1, 2, 6, 9};
  const std::vector<std::vector<int32_t>> bags = {{0, 1, 2, 2}, {}, {1}};
  const std::vector<float> gradient = {8, 100, 1};
  EXPECT_EQ(Differentiate(Small(Combiner::kSum, rows, bags), gradient).rows,
            (std::vector<float>{8, 9, 16, 0}));
  EXPECT_EQ(Differentiate(Small(Combiner::kMean, rows, bags), gradient).rows,
            (std::vector<float>{2, 3, 4, 0}));
  EXPECT_EQ(Differentiate(Small(Combiner::kSqrtn, rows, bags), gradient).rows,
            (std::vector<float>{4, 5, 8, 0}));
  EXPECT_EQ(Differentiate(Small(Combiner::kMax, rows, bags), gradient).rows,
            (std::vector<float>{0, 1, 8, 0}));
}

TEST(CombineTest, GradientOfMaxIsSplitBetweenEqualValues) {
  // Three values reach 6: row 2 twice and row 3 once.
  const Input input = Small(Combiner::kMax, {1, 2, 6, 6}, {{2, 1, 3, 2}});
  EXPECT_EQ(Differentiate(input, {3}).rows, (std::vector<float>{0, 0, 2, 1}));
}

TEST(CombineTest, GradientOfABagWithoutDivisorIsZero) {
  const float kInf = std::numeric_limits<float>::infinity();
  const Input input = Small(Combiner::kMean, {1, 2}, {{0, 1}, {}}, {1, -1});
  const Gradients gradients = Differentiate(input, {kInf, kInf});
  EXPECT_EQ(gradients.rows, (std::vector<float>{0, 0}));
  EXPECT_EQ(gradients.weights, (std::vector<float>{0, 0}));
}

TEST(CombineTest, AgreesWithTheReferenceForEveryDim) {
  const uint64_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const int64_t dim : {1, 2, 3, 8, 16, 17, 32, 64, 100}) {
    for (const bool weighted : {false, true}) {
      const Input input = Random(seed, 50, dim, weighted);
      const std::vector<float> out = Combine(input);
      ForEachBag(input, [&](int64_t c, int64_t b, int64_t begin, int64_t end) {
        for (int64_t d = 0; d < dim; ++d) {
          const double expected = ReferenceAt(input, c, d, begin, end);
          // 6 terms of at most 2.5, and cancellation.
          ASSERT_NEAR(out[b * input.width() + c * dim + d], expected, 5e-6)
              << "dim " << dim << " column " << c << " bag " << b;
        }
      });
    }
  }
}

TEST(CombineTest, GradientsAgreeWithCentralDifferences) {
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const int64_t dim : {1, 3, 8, 20}) {
    for (const bool weighted : {false, true}) {
      const Input input = Random(seed, 30, dim, weighted);
      std::mt19937_64 random(seed);
      std::uniform_real_distribution<float> uniform(-1, 1);
      std::vector<float> gradient(input.batch * input.width());
      for (float& value : gradient) value = uniform(random);
      std::vector<double> rows(input.rows.size(), 0);
      std::vector<double> weights(input.weights.size(), 0);
      ForEachBag(input, [&](int64_t c, int64_t b, int64_t begin, int64_t end) {
        const auto first = input.inverse.begin() + begin;
        for (int64_t i = begin; i < end; ++i) {
          const int32_t row = input.inverse[i];
          // A row that is in the bag twice has one slope.
          const bool repeated =
              std::find(first, first + (i - begin), row) != first + (i - begin);
          for (int64_t d = 0; d < dim; ++d) {
            const double g = gradient[b * input.width() + c * dim + d];
            if (!repeated) {
              rows[row * dim + d] +=
                  g * SlopeAt(input, c, d, begin, end, row, -1);
            }
            if (weighted) {
              weights[i] += g * SlopeAt(input, c, d, begin, end, -1, i);
            }
          }
        }
      });
      const Gradients found = Differentiate(input, gradient);
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_NEAR(found.rows[i], rows[i], 1e-5 * (1 + std::abs(rows[i])))
            << "dim " << dim << " at " << i;
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_NEAR(found.weights[i], weights[i],
                    1e-5 * (1 + std::abs(weights[i])))
            << "dim " << dim << " value " << i;
      }
    }
  }
}

TEST(CombineTest, SameBitsForOneAndManyThreads) {
  const uint64_t seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const int64_t dim : {1, 16, 33}) {
    for (const bool weighted : {false, true}) {
      const Input input = Random(seed, 100000 / dim, dim, weighted);
      const std::vector<float> out = Combine(input);
      EXPECT_TRUE(Combine(input, FourThreads) == out);
      std::vector<float> gradient(out.size());
      for (size_t i = 0; i < out.size(); ++i) gradient[i] = 1.0f / (i % 97 + 1);
      const Gradients one = Differentiate(input, gradient);
      const Gradients many = Differentiate(input, gradient, FourThreads);
      EXPECT_TRUE(many.rows == one.rows);
      EXPECT_TRUE(many.weights == one.weights);
      // In the order of `inverse`: the sums of a plain loop, to the bit.
      std::vector<float> rows(input.rows.size(), 0);
      ForEachBag(input, [&](int64_t c, int64_t b, int64_t begin, int64_t end) {
        if (input.combiners[c] != Combiner::kSum) return;
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t d = 0; d < dim; ++d) {
            const float weight = weighted ? input.weights[i] : 1;
            rows[input.inverse[i] * dim + d] +=
                weight * gradient[b * input.width() + c * dim + d];
          }
        }
      });
      Input sums = input;
      sums.combiners = {Combiner::kSum};
      sums.row_splits.resize(sums.batch + 1);
      sums.inverse.resize(sums.row_splits.back());
      if (weighted) sums.weights.resize(sums.inverse.size());
      std::vector<float> sums_gradient;
      for (int64_t b = 0; b < input.batch; ++b) {
        const float* const first = &gradient[b * input.width()];
        sums_gradient.insert(sums_gradient.end(), first, first + dim);
      }
      EXPECT_TRUE(Differentiate(sums, sums_gradient, FourThreads).rows == rows);
    }
  }
}

TEST(CombineTest, NothingToCombine) {
  Input input;
  input.combiners = {Combiner::kMean, Combiner::kMax};
  input.dim = 4;
  input.row_splits = {0};
  EXPECT_TRUE(Combine(input).empty());
  EXPECT_TRUE(Differentiate(input, {}).rows.empty());
  input.batch = 3;
  input.row_splits.assign(7, 0);
  EXPECT_EQ(Combine(input), std::vector<float>(24, 0));
  input.rows.assign(8, 1);
  EXPECT_EQ(Differentiate(input, std::vector<float>(24, 1)).rows,
            std::vector<float>(8, 0));
}

TEST(CombineTest, MalformedBagsAreErrors) {
  const Input good = Small(Combiner::kSum, {1, 2}, {{0, 1}, {1}});
  const auto error = [&good](const std::function<void(Input*)>& change) {
    Input input = good;
    change(&input);
    const Status status = CheckBags(input.bags());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_PRED2(Says, error([](Input* in) {
                 in->row_splits = {1, 2, 3};
               }),
               "row_splits[0] is 1; it must be 0");
  EXPECT_PRED2(Says, error([](Input* in) {
                 in->row_splits = {0, 4, 3};
               }),
               "row_splits[2] is 3, below the 4 before it");
  EXPECT_PRED2(Says, error([](Input* in) {
                 in->row_splits = {0, -1, 3};
               }),
               "row_splits[1] is -1, below the 0 before it");
  EXPECT_PRED2(Says, error([](Input* in) {
                 in->row_splits = {0, 2, 4};
               }),
               "row_splits[2] is 4; the last one must be the number of "
               "values, 3");
  EXPECT_PRED2(Says, error([](Input* in) { in->inverse[1] = 2; }),
               "inverse[1] is 2; it must be at least 0 and below the number "
               "of rows, 2");
  EXPECT_PRED2(Says, error([](Input* in) { in->inverse[2] = -1; }),
               "inverse[2] is -1");
  EXPECT_PRED2(Says, error([](Input* in) { in->combiners.clear(); }),
               "there are no combiners");
  EXPECT_PRED2(Says, error([](Input* in) {
                 in->combiners = {Combiner::kMax};
                 in->weights = {1, 1, 1};
               }),
               "column 0 has combiner max and weights");
}

}  // namespace
}  // namespace tf_ext
