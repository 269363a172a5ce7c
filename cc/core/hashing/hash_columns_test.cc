// SPDX-License-Identifier: Apache-2.0
#include "cc/core/hashing/hash_columns.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/hash_columns_test_util.h"
#include "cc/core/support/simd_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

int64_t SignOf(const std::string& ns, const std::string& text) {
  return static_cast<int64_t>(Fingerprint64(ns + "\x1f" + text));
}

std::string BucketText(const std::string& text, uint64_t bucket_size) {
  return std::to_string(Fingerprint64(text) % bucket_size);
}

TEST(HashColumnsTest, FixedVectors) {
  // These numbers are in people's tables: they never change.
  const std::vector<std::string> texts = {"foo", "", "5"};
  const std::vector<int64_t> numbers = {5, -1, kMin};
  const std::vector<float> ages = {17.5f, 18.0f, 99.0f};
  const Hashed hashed =
      Hash({Column("user", {Part(0)}), Column("user", {Part(1)}),
            Column("user", {Part(0)}, 1000),
            WithBoundaries(Column("age", {Part(2)}), {18.0f, 65.0f}),
            Column("user_X_item", {Part(0), Part(1)}),
            Column("user_X_item", {Part(0, 10), Part(1)}, 1000)},
           {Strings(texts), Int64s(numbers), Floats(ages)});
  const std::vector<int64_t> expected = {
      9103845330217157765, -2611212750099400506, 2904937300852589665,
      2904937300852589665, -7166145216217607555, 3047804191237820746,
      7759084036343930808, -3568718581718283951, 7641086415536564579,
      3190728806797746854, 3500444406002511507,  -6105391199902481706,
      3580502377255879096, 287092908119440946,   -4814365422762247534,
      1555052302255577811, 4299443082131408920,  -6549101619606261136};
  EXPECT_EQ(hashed.signs, expected);
}

TEST(HashColumnsTest, TextsAreNamespaceAndValue) {
  const std::vector<std::string> texts = {"a",
                                          "",
                                          std::string("nul\0nul", 7),
                                          "\xff\xfe",
                                          "g\xc3\xbcnstig",
                                          std::string(5000, 'x')};
  const Hashed hashed = Hash({Column("user", {Part(0)})}, {Strings(texts)});
  ASSERT_EQ(hashed.signs.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(hashed.signs[i], SignOf("user", texts[i])) << i;
  }
  EXPECT_EQ(hashed.row_splits, std::vector<int64_t>({0, 1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(hashed.weights.empty());
}

// Where all texts of a group are of 8 to so many bytes, they are read as words.
TEST(HashColumnsTest, TextsOfAnySizesInOneBatch) {
  for (const SimdLevel level : SimdLevels()) {
    const ScopedSimdLevel scoped(level);
    for (const size_t ns_size : {0, 1, 3, 6, 7, 8, 12}) {
      const std::string ns(ns_size, 'n');
      for (const size_t spread : {1, 3, 9, 40}) {
        std::vector<std::string> texts;
        for (size_t i = 0; i < 333; ++i) {
          std::string text = std::to_string(i * 7919);
          text.resize(8 + i % spread, static_cast<char>('a' + i % 26));
          texts.push_back(i == 100 ? "short" : text);
        }
        const Hashed hashed = Hash({Column(ns, {Part(0)})}, {Strings(texts)});
        for (size_t i = 0; i < texts.size(); ++i) {
          ASSERT_EQ(hashed.signs[i], SignOf(ns, texts[i]))
              << SimdLevelName(level) << ", namespace of " << ns_size << ", "
              << texts[i];
        }
      }
    }
  }
}

TEST(HashColumnsTest, IntegersHashAsTheirDecimalText) {
  const std::vector<int64_t> numbers = {5, 0, -1, kMin, kMax};
  const std::vector<int32_t> narrow = {5, 0, -1,
                                       std::numeric_limits<int32_t>::min(),
                                       std::numeric_limits<int32_t>::max()};
  const std::vector<std::string> texts = {
      "5", "0", "-1", "-9223372036854775808", "9223372036854775807"};
  const Hashed hashed = Hash({Column("id", {Part(0)}), Column("id", {Part(1)}),
                              Column("id", {Part(2)})},
                             {Int64s(numbers), Strings(texts), Int32s(narrow)});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(hashed.signs[i], hashed.signs[5 + i]) << i;
    EXPECT_EQ(hashed.signs[10 + i], SignOf("id", std::to_string(narrow[i])));
  }
}

TEST(HashColumnsTest, BucketSizeHashesTheBucketsDecimalText) {
  const std::vector<std::string> texts = {"foo", "bar", ""};
  const std::vector<int64_t> numbers = {7, -7, 123456789};
  const Hashed hashed =
      Hash({Column("a", {Part(0)}, 1000), Column("b", {Part(1)}, 3),
            Column("c", {Part(1)}, 1)},
           {Strings(texts), Int64s(numbers)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(hashed.signs[i], SignOf("a", BucketText(texts[i], 1000)));
    EXPECT_EQ(hashed.signs[3 + i],
              SignOf("b", BucketText(std::to_string(numbers[i]), 3)));
    EXPECT_EQ(hashed.signs[6 + i], SignOf("c", "0"));
  }
}

TEST(HashColumnsTest, BoundariesAreLowerEndsOfTheirBucket) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-inf, -1, 0, 0.5f, 1, 9.99f, 10, inf};
  const std::vector<int64_t> integers = {kMin, -1, 0, 1, 2, 9, 10, kMax};
  const std::vector<float> boundaries = {0, 1, 10};
  const Hashed hashed =
      Hash({WithBoundaries(Column("f", {Part(0)}), boundaries),
            WithBoundaries(Column("i", {Part(1)}), boundaries)},
           {Floats(values), Int64s(integers)});
  const std::vector<int> float_buckets = {0, 0, 1, 1, 2, 2, 3, 3};
  const std::vector<int> integer_buckets = {0, 0, 1, 2, 2, 2, 3, 3};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(hashed.signs[i], SignOf("f", std::to_string(float_buckets[i])));
    EXPECT_EQ(hashed.signs[8 + i],
              SignOf("i", std::to_string(integer_buckets[i])));
  }
}

// Whether the processor does, TensorFlow sets for each thread.
TEST(HashColumnsTest, DenormalNumbersAreZero) {
  const float least = std::numeric_limits<float>::min();
  const float denormal = least / 2;
  const std::vector<float> values = {-least, -denormal, 0, denormal, least};
  const Hashed hashed =
      Hash({WithBoundaries(Column("f", {Part(0)}), {0, least}),
            WithBoundaries(Column("f", {Part(0)}), {-denormal, least}),
            WithMissing(WithBoundaries(Column("f", {Part(0)}), {0}), "1e-39")},
           {Floats(values)});
  std::vector<int64_t> expected;
  for (const char* const bucket : {"0", "1", "1", "1", "2",  //
                                   "0", "1", "1", "1", "2", "0", "1"}) {
    expected.push_back(SignOf("f", bucket));
  }
  EXPECT_EQ(hashed.signs, expected);
}

TEST(HashColumnsTest, MissingValuesAreDropped) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::string> texts = {"", "?", "a", "?"};
  const std::vector<int64_t> numbers = {-1, 0, -1, 3};
  const std::vector<int32_t> narrow = {-1, 0, -1, 3};
  const std::vector<float> floats = {nan, -999, 1, -nan};
  const Hashed hashed =
      Hash({WithMissing(Column("s", {Part(0)}), "?"),
            WithMissing(Column("i", {Part(1)}), "-1"),
            WithMissing(Column("n", {Part(2)}), "3"),
            WithMissing(WithBoundaries(Column("f", {Part(3)}), {0}), "-999"),
            WithBoundaries(Column("g", {Part(3)}), {0})},
           {Strings(texts), Int64s(numbers), Int32s(narrow), Floats(floats)});
  EXPECT_EQ(hashed.signs,
            std::vector<int64_t>({SignOf("s", ""), SignOf("s", "a"),
                                  SignOf("i", "0"), SignOf("i", "3"),
                                  SignOf("n", "-1"), SignOf("n", "0"),
                                  SignOf("n", "-1"), SignOf("f", "1"),
                                  SignOf("g", "0"), SignOf("g", "1")}));
  EXPECT_EQ(hashed.row_splits,
            std::vector<int64_t>({0, 1, 1, 2, 2, 2, 3, 3, 4,  5, 6,
                                  7, 7, 7, 7, 8, 8, 8, 9, 10, 10}));
}

TEST(HashColumnsTest, WithoutMissingEmptyTextAndMinusOneAreOrdinary) {
  const std::vector<std::string> texts = {""};
  const std::vector<int64_t> numbers = {-1};
  const Hashed hashed = Hash({Column("s", {Part(0)}), Column("i", {Part(1)})},
                             {Strings(texts), Int64s(numbers)});
  EXPECT_EQ(hashed.signs,
            std::vector<int64_t>({SignOf("s", ""), SignOf("i", "-1")}));
}

TEST(HashColumnsTest, IdentityTakesIntegersAsSigns) {
  const std::vector<int64_t> numbers = {0, -1, kMin, kMax};
  const std::vector<int32_t> narrow = {0, -1, -2, 3};
  const Hashed hashed =
      Hash({Identity(Column("a", {Part(0)})), Identity(Column("b", {Part(1)})),
            WithMissing(Identity(Column("c", {Part(0)})), "-1")},
           {Int64s(numbers), Int32s(narrow)});
  EXPECT_EQ(hashed.signs, std::vector<int64_t>({0, -1, kMin, kMax, 0, -1, -2, 3,
                                                0, kMin, kMax}));
}

TEST(HashColumnsTest, DenseBagsAndSplitsGiveTheSame) {
  const std::vector<int64_t> numbers = {1, 2, 3, 4, 5, 6};
  HashInput dense = Int64s(numbers);
  dense.batch = 3;
  const std::vector<int64_t> splits = {0, 2, 4, 6};
  const Hashed a = Hash({Column("c", {Part(0)})}, {dense});
  const Hashed b =
      Hash({Column("c", {Part(0)})}, {Split(Int64s(numbers), splits)});
  EXPECT_EQ(a.signs, b.signs);
  EXPECT_EQ(a.row_splits, splits);
  EXPECT_EQ(b.row_splits, splits);
}

TEST(HashColumnsTest, CrossIsTheProductOfTheBagsLastPartFastest) {
  const std::vector<std::string> texts = {"a", "b", "c"};
  const std::vector<int64_t> numbers = {1, 2, 3};
  const std::vector<int64_t> text_splits = {0, 2, 2, 3};
  const std::vector<int64_t> number_splits = {0, 2, 3, 3};
  const Hashed hashed = Hash({Column("x", {Part(0), Part(1)})},
                             {Split(Strings(texts), text_splits),
                              Split(Int64s(numbers), number_splits)});
  EXPECT_EQ(hashed.signs, std::vector<int64_t>({SignOf("x",
                                                       "a\x1e"
                                                       "1"),
                                                SignOf("x",
                                                       "a\x1e"
                                                       "2"),
                                                SignOf("x",
                                                       "b\x1e"
                                                       "1"),
                                                SignOf("x",
                                                       "b\x1e"
                                                       "2")}));
  EXPECT_EQ(hashed.row_splits, std::vector<int64_t>({0, 4, 4, 4}));
}

TEST(HashColumnsTest, CrossOfDenseBagsIsThatOfSplits) {
  const std::vector<int64_t> pairs = {1, 2, 3, 4};
  const std::vector<int64_t> triples = {5, 6, 7, 8, 9, 10};
  const std::vector<HashColumn> columns = {Column("x", {Part(0), Part(1)}),
                                           Column("y", {Part(1), Part(0)})};
  HashInput two = Int64s(pairs);
  HashInput three = Int64s(triples);
  two.batch = three.batch = 2;
  const Hashed dense = Hash(columns, {two, three});
  const std::vector<int64_t> two_splits = {0, 2, 4};
  const std::vector<int64_t> three_splits = {0, 3, 6};
  const Hashed split =
      Hash(columns, {Split(two, two_splits), Split(three, three_splits)});
  EXPECT_EQ(dense.row_splits, std::vector<int64_t>({0, 6, 12, 18, 24}));
  EXPECT_EQ(split.row_splits, dense.row_splits);
  EXPECT_EQ(split.signs, dense.signs);
}

TEST(HashColumnsTest, CrossAppliesBucketsOfPartsThenItsOwn) {
  const std::vector<std::string> texts = {"a"};
  const std::vector<int64_t> numbers = {42};
  const std::string joined = BucketText("a", 10) +
                             "\x1e"
                             "42\x1e"
                             "a";
  const Hashed hashed = Hash({Column("x", {Part(0, 10), Part(1), Part(0)}),
                              Column("x", {Part(0, 10), Part(1), Part(0)}, 77)},
                             {Strings(texts), Int64s(numbers)});
  EXPECT_EQ(hashed.signs,
            std::vector<int64_t>(
                {SignOf("x", joined), SignOf("x", BucketText(joined, 77))}));
}

TEST(HashColumnsTest, CrossOrderAndJoiningMatter) {
  const std::vector<std::string> left = {"ab"};
  const std::vector<std::string> right = {"c"};
  const Hashed hashed =
      Hash({Column("x", {Part(0), Part(1)}), Column("x", {Part(1), Part(0)})},
           {Strings(left), Strings(right)});
  EXPECT_NE(hashed.signs[0], hashed.signs[1]);
  EXPECT_NE(hashed.signs[0], SignOf("x", "abc"));
}

TEST(HashColumnsTest, CrossDropsMissingValuesOfItsParts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::string> texts = {"?", "a"};
  const std::vector<float> floats = {nan, 2, nan};
  const std::vector<int64_t> text_splits = {0, 2};
  const std::vector<int64_t> float_splits = {0, 3};
  HashColumn column = WithMissing(Column("x", {Part(0), Part(1)}), "?");
  column.parts[1].boundaries = {1};
  const Hashed hashed = Hash({column}, {Split(Strings(texts), text_splits),
                                        Split(Floats(floats), float_splits)});
  EXPECT_EQ(hashed.signs, std::vector<int64_t>({SignOf("x",
                                                       "a\x1e"
                                                       "1")}));
}

TEST(HashColumnsTest, WeightsFollowTheirValues) {
  const std::vector<int64_t> numbers = {1, -1, 3};
  const std::vector<float> weights = {0.5f, 9, -2};
  const std::vector<std::string> texts = {"a", "b"};
  const std::vector<float> text_weights = {10, 100};
  const std::vector<int64_t> number_splits = {0, 3};
  const std::vector<int64_t> text_splits = {0, 2};
  const Hashed hashed =
      Hash({WithMissing(Column("n", {Part(0)}), "-1"),
            WithMissing(Column("x", {Part(0), Part(1)}), "-1"),
            Identity(Column("m", {Part(0)})), Column("u", {Part(2)})},
           {Weighted(Split(Int64s(numbers), number_splits), weights),
            Weighted(Split(Strings(texts), text_splits), text_weights),
            Split(Strings(texts), text_splits)});
  EXPECT_EQ(hashed.weights, std::vector<float>({0.5f, -2, 5, 50, -20, -200,
                                                0.5f, 9, -2, 1, 1}));
}

TEST(HashColumnsTest, EmptyBatch) {
  const std::vector<int64_t> none;
  const std::vector<int64_t> splits = {0};
  const Hashed hashed =
      Hash({Column("a", {Part(0)}), Column("b", {Part(0), Part(1)})},
           {Int64s(none), Split(Int64s(none), splits)});
  EXPECT_TRUE(hashed.signs.empty());
  EXPECT_EQ(hashed.row_splits, std::vector<int64_t>({0}));
}

TEST(HashColumnsTest, EmptyBags) {
  const std::vector<int64_t> none;
  HashInput input = Int64s(none);
  input.batch = 2;
  const Hashed hashed = Hash({Column("a", {Part(0)})}, {input});
  EXPECT_EQ(hashed.row_splits, std::vector<int64_t>({0, 0, 0}));
}

TEST(HashColumnsTest, ThreadsDoNotChangeTheResult) {
  std::vector<int64_t> numbers(20000);
  std::vector<float> floats(numbers.size());
  std::vector<int64_t> splits = {0};
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<int64_t>(i * i % 1000) - 5;
    floats[i] = i % 7 == 0 ? std::nanf("") : static_cast<float>(i % 50);
  }
  while (splits.back() < 20000) {
    splits.push_back(
        std::min<int64_t>(20000, splits.back() + splits.size() % 5));
  }
  const std::vector<HashColumn> columns = {
      WithMissing(Column("a", {Part(0)}), "-1"),
      WithBoundaries(Column("b", {Part(1)}, 10), {10, 20}),
      WithBoundaries(Column("c", {Part(1), Part(0)}), {10, 20})};
  const std::vector<HashInput> inputs = {
      Weighted(Split(Int64s(numbers), splits), floats),
      Split(Floats(floats), splits)};
  const Hashed serial = Hash(columns, inputs);
  const Hashed threaded = Hash(columns, inputs, ThreadedFor);
  EXPECT_GT(serial.signs.size(), numbers.size());
  EXPECT_EQ(serial.signs, threaded.signs);
  EXPECT_EQ(serial.row_splits, threaded.row_splits);
  EXPECT_EQ(serial.weights.size(), threaded.weights.size());
}

// An empty part makes the product empty, however large the others are.
TEST(HashColumnsTest, CrossWithAnEmptyPartIsEmptyAtOnce) {
  const std::vector<int64_t> numbers(1 << 15);
  const std::vector<int64_t> none;
  HashInput input = Int64s(numbers);
  input.batch = 1;
  HashInput empty = Int64s(none);
  empty.batch = 1;
  const Hashed hashed =
      Hash({Column("x", {Part(0), Part(0), Part(0), Part(0), Part(1)})},
           {input, empty});
  EXPECT_EQ(hashed.row_splits, std::vector<int64_t>({0, 0}));
}

}  // namespace
}  // namespace tf_ext
