// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/hash_columns_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

struct ErrorCase {
  std::string name;
  HashColumn column;
  std::string message;
};

class ColumnErrorTest : public testing::TestWithParam<ErrorCase> {};

// Inputs: 0 string, 1 int64, 2 int32, 3 float.
TEST_P(ColumnErrorTest, IsNamed) {
  std::unique_ptr<ColumnHasher> hasher;
  const Status status =
      ColumnHasher::Create({GetParam().column},
                           {ValueType::kString, ValueType::kInt64,
                            ValueType::kInt32, ValueType::kFloat},
                           &hasher);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
  EXPECT_EQ(hasher, nullptr);
}

std::vector<ErrorCase> ErrorCases() {
  const float inf = std::numeric_limits<float>::infinity();
  const std::string name = "Column 0 (namespace \"c\")";
  const std::string identity =
      name +
      " takes values as signs (identity), which needs one part of type int64"
      " or int32 without bucket_size and boundaries, but it has ";
  return {
      {"NoPart", Column("c", {}), name + " has 0 parts; 1 to 64 are allowed."},
      {"TooManyParts", Column("c", std::vector<HashPart>(65, Part(0))),
       name + " has 65 parts; 1 to 64 are allowed."},
      {"InputTooLarge", Column("c", {Part(4)}),
       name + " uses input 4, but there are 4 inputs."},
      {"InputNegative", Column("c", {Part(-1)}),
       name + " uses input -1, but there are 4 inputs."},
      {"BucketSizeNegative", Column("c", {Part(0)}, -3),
       name + " has bucket_size -3, which must be at least 1, or 0 for"
              " unbounded."},
      {"PartBucketSizeNegative", Column("c", {Part(0, -3), Part(1)}),
       name + " has bucket_size -3, which must be at least 1, or 0 for"
              " unbounded."},
      {"BucketSizeOfTheOnlyPart", Column("c", {Part(0, 3)}),
       name + " has one part, whose bucket_size must be 0, but is 3; give the"
              " column the bucket_size."},
      {"FloatWithoutBoundaries", Column("c", {Part(3)}),
       name + " has an input of type float, which needs boundaries; give it"
              " boundaries, or an input of integers or strings."},
      {"StringWithBoundaries", WithBoundaries(Column("c", {Part(0)}), {1}),
       name + " has boundaries, which need numbers, but its input is of type"
              " string."},
      {"BoundariesEqual", WithBoundaries(Column("c", {Part(3)}), {0, 2, 2}),
       name +
           " has boundaries that do not increase: 2 and then 2 at position 2."},
      {"BoundaryInfinite", WithBoundaries(Column("c", {Part(3)}), {0, inf}),
       name + " has the boundary inf at position 1; boundaries must be"
              " finite."},
      {"MissingNotAnInteger", WithMissing(Column("c", {Part(1)}), "a\n"),
       name + " names \"a\\x0a\" as missing, which is not a value of its"
              " input's type, int64; set missing to an integer of that type,"
              " or to None for no such value."},
      {"MissingBeyondInt32", WithMissing(Column("c", {Part(2)}), "2147483648"),
       name + " names \"2147483648\" as missing, which is not a value of its"
              " input's type, int32; set missing to an integer of that type,"
              " or to None for no such value."},
      {"MissingEmpty", WithMissing(Column("c", {Part(1)}), ""),
       name + " names \"\" as missing, which is not a value of its input's"
              " type, int64; set missing to an integer of that type, or to None"
              " for no such value."},
      {"IdentityOfStrings", Identity(Column("c", {Part(0)})),
       identity + "1 of type string, bucket_size 0 and 0 boundaries."},
      {"IdentityOfACross", Identity(Column("c", {Part(1), Part(1)})),
       identity + "2 of type int64, bucket_size 0 and 0 boundaries."},
      {"IdentityWithBucketSize", Identity(Column("c", {Part(2)}, 5)),
       identity + "1 of type int32, bucket_size 5 and 0 boundaries."},
      {"IdentityWithBoundaries",
       Identity(WithBoundaries(Column("c", {Part(1)}), {1, 2})),
       identity + "1 of type int64, bucket_size 0 and 2 boundaries."},
  };
}

INSTANTIATE_TEST_SUITE_P(HashColumnsErrorsTest, ColumnErrorTest,
                         testing::ValuesIn(ErrorCases()),
                         [](const testing::TestParamInfo<ErrorCase>& info) {
                           return info.param.name;
                         });

TEST(HashColumnsErrorsTest, NoColumnsAndNoInputsAreErrors) {
  const std::vector<int64_t> numbers = {1};
  EXPECT_EQ(ErrorOf({}, {Int64s(numbers)}),
            "There must be at least one column.");
  std::unique_ptr<ColumnHasher> hasher;
  ASSERT_TRUE(ColumnHasher::Create({Column("c", {Part(0)})},
                                   {ValueType::kInt64}, &hasher)
                  .ok());
  int64_t batch = 0;
  EXPECT_EQ(hasher->CheckInputs({}, &batch).message(),
            "There must be 1 inputs, and at least 1, but there are 0.");
}

TEST(HashColumnsErrorsTest, InputErrorsNameTheInput) {
  const std::vector<int64_t> three = {1, 2, 3};
  const std::vector<int64_t> two = {1, 2};
  const std::vector<int64_t> high = {1, 3};
  const std::vector<int64_t> falling = {0, 2, 1, 3};
  const std::vector<int64_t> falling_last = {0, 4, 3};
  const std::vector<int64_t> negative = {0, -2, 3};
  const std::vector<int64_t> short_end = {0, 2};
  const std::vector<int64_t> long_end = {0, 4};
  const std::vector<HashColumn> one = {Column("c", {Part(0)})};
  const std::vector<HashColumn> both = {Column("c", {Part(0)}),
                                        Column("d", {Part(1)})};
  const std::string first = "input 0 (of the column of namespace \"c\")";
  EXPECT_EQ(
      ErrorOf(both, {Int64s(three), Int64s(two)}),
      "All inputs must have the same batch size, but input 1 (of the column"
      " of namespace \"d\") has 2 and " +
          first + " has 3.");
  EXPECT_EQ(ErrorOf(one, {Split(Int64s(three), high)}),
            "The row_splits of " + first +
                " must start at 0, but start at"
                " 1.");
  EXPECT_EQ(ErrorOf(one, {Split(Int64s(three), falling)}),
            "The row_splits of " + first +
                " must not decrease, but go from 2 to"
                " 1 at position 2.");
  EXPECT_EQ(ErrorOf(one, {Split(Int64s(three), falling_last)}),
            "The row_splits of " + first +
                " must not decrease, but go from 4 to"
                " 3 at position 2.");
  EXPECT_EQ(ErrorOf(one, {Split(Int64s(three), negative)}),
            "The row_splits of " + first +
                " must not decrease, but go from 0 to"
                " -2 at position 1.");
  for (const auto& splits : {short_end, long_end}) {
    EXPECT_EQ(ErrorOf(one, {Split(Int64s(three), splits)}),
              "The row_splits of " + first +
                  " must end at its number of"
                  " values, which is 3, but end at " +
                  std::to_string(splits[1]) + ".");
  }
  HashInput uneven = Int64s(three);
  uneven.batch = 2;
  EXPECT_EQ(ErrorOf(one, {uneven}),
            "The number of values of " + first +
                " must be a multiple of the"
                " batch size, but there are 3 values and 2 bags.");
  HashInput no_bags = Int64s(three);
  no_bags.batch = 0;
  EXPECT_EQ(ErrorOf(one, {no_bags}),
            "The number of values of " + first +
                " must be a multiple of the"
                " batch size, but there are 3 values and 0 bags.");
}

TEST(HashColumnsErrorsTest, TypeThatWasNotDeclaredIsAnError) {
  const std::vector<int64_t> numbers = {1};
  std::unique_ptr<ColumnHasher> hasher;
  ASSERT_TRUE(ColumnHasher::Create({Column("c", {Part(0)})},
                                   {ValueType::kString}, &hasher)
                  .ok());
  int64_t batch = 0;
  EXPECT_EQ(hasher->CheckInputs({Int64s(numbers)}, &batch).message(),
            "The values of input 0 (of the column of namespace \"c\") must be"
            " of type string, but are of type int64.");
}

// The product of the bags is 2^60: found before anything is allocated.
TEST(HashColumnsErrorsTest, ExplodingCrossIsAnError) {
  const std::vector<int64_t> numbers(1 << 15);
  HashInput input = Int64s(numbers);
  input.batch = 1;
  EXPECT_EQ(ErrorOf({Column("a", {Part(0)}),
                     Column("x", {Part(0), Part(0), Part(0), Part(0)})},
                    {input}),
            "The batch makes more than 2147483647 signs, the most that one call"
            " can make, in the column of namespace \"x\" and those before it."
            " Use a smaller batch, or shorter bags in crosses.");
}

TEST(HashColumnsErrorsTest, TooManyBagsAreAnError) {
  const std::vector<int64_t> none;
  HashInput input = Int64s(none);
  input.batch = int64_t{1} << 31;
  EXPECT_EQ(ErrorOf({Column("a", {Part(0)})}, {input}),
            "A batch of 2147483648 in each of 1 columns makes more than"
            " 2147483647 bags, the most that one call can make; use a smaller"
            " batch.");
}

}  // namespace
}  // namespace tf_ext
