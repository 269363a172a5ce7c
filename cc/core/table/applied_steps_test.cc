// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/applied_steps.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

bool IsNew(AppliedSteps* steps, const StepPush& push) {
  bool is_new = false;
  EXPECT_TRUE(IsOk(steps->Claim(push, &is_new)));
  return is_new;
}

TEST(AppliedStepsTest, EachPushIsNewOnce) {
  AppliedSteps steps;
  EXPECT_TRUE(IsNew(&steps, {5, 0, 0}));
  EXPECT_FALSE(IsNew(&steps, {5, 0, 0}));
  EXPECT_TRUE(IsNew(&steps, {5, 0, 1}));
  EXPECT_TRUE(IsNew(&steps, {4, 0, 0}));
  EXPECT_FALSE(IsNew(&steps, {5, 2, 1}));
  EXPECT_FALSE(IsNew(&steps, {4, 0, 0}));
  EXPECT_FALSE(IsNew(&steps, {0, 0, 0}));
}

TEST(AppliedStepsTest, StepsThatHaveEndedAreForgottenAndNotNew) {
  AppliedSteps steps;
  for (int64_t number = 0; number < 10; ++number) {
    EXPECT_TRUE(IsNew(&steps, {number, 0, 0}));
    EXPECT_TRUE(IsNew(&steps, {number, 0, 1}));
  }
  EXPECT_EQ(steps.Size(), 20);
  EXPECT_TRUE(IsNew(&steps, {12, 8, 0}));
  EXPECT_EQ(steps.Size(), 5);
  // One that ended without this push, and comes after all.
  EXPECT_FALSE(IsNew(&steps, {7, 0, 2}));
  EXPECT_FALSE(IsNew(&steps, {8, 3, 1}));
  EXPECT_TRUE(IsNew(&steps, {8, 3, 2}));
  EXPECT_EQ(steps.Size(), 6);
}

TEST(AppliedStepsTest, TheLargestNumbers) {
  AppliedSteps steps;
  EXPECT_TRUE(IsNew(&steps, {kLast, 0, kLast}));
  EXPECT_FALSE(IsNew(&steps, {kLast, kLast, kLast}));
  EXPECT_TRUE(IsNew(&steps, {kLast, kLast, 0}));
  EXPECT_FALSE(IsNew(&steps, {kLast - 1, 0, 0}));
  EXPECT_EQ(steps.Size(), 2);
}

TEST(AppliedStepsTest, NumbersThatCannotBe) {
  AppliedSteps steps;
  for (const StepPush& push : std::vector<StepPush>{{-1, 0, 0},
                                                    {1, -1, 0},
                                                    {1, 2, 0},
                                                    {1, 0, -1},
                                                    {-kLast - 1, kLast, 0}}) {
    bool is_new = false;
    const Status status = steps.Claim(push, &is_new);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(is_new);
  }
  EXPECT_EQ(steps.Size(), 0);
  EXPECT_TRUE(IsNew(&steps, {1, 0, 0}));
}

TEST(AppliedStepsTest, MemoryIsBounded) {
  AppliedSteps steps;
  for (int64_t number = 0; number < AppliedSteps::kMost; ++number) {
    ASSERT_TRUE(IsNew(&steps, {number, 0, 0}));
  }
  bool is_new = true;
  const Status status = steps.Claim({AppliedSteps::kMost, 0, 0}, &is_new);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(is_new);
  EXPECT_FALSE(IsNew(&steps, {3, 0, 0}));
  EXPECT_TRUE(IsNew(&steps, {AppliedSteps::kMost, 1, 0}));
}

TEST(AppliedStepsTest, OneOfSeveralThreads) {
  constexpr int64_t kSteps = 2000;
  AppliedSteps steps;
  std::atomic<int64_t> found{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&steps, &found] {
      for (int64_t number = 0; number < kSteps; ++number) {
        if (IsNew(&steps, {number, 0, 0})) ++found;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found.load(), kSteps);
  EXPECT_EQ(steps.Size(), kSteps);
}

}  // namespace
}  // namespace tf_ext
