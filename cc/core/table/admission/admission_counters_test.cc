// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/admission/admission_counters.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/table/admission/counter_lines.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

std::map<uint64_t, int> All(const CounterLines& lines) {
  std::map<uint64_t, int> all;
  lines.ForEach([&all](uint64_t hash, uint8_t count) {
    EXPECT_TRUE(all.emplace(hash, count).second) << "twice: " << hash;
  });
  return all;
}

TEST(CounterLinesTest, AreAMapWhateverIsInsertedAndRemoved) {
  std::mt19937_64 random(7);
  for (const uint64_t hashes : {40u, 3000u}) {
    CounterLines lines(0.5);
    std::map<uint64_t, int> expected;
    for (int i = 0; i < 60000; ++i) {
      // More insertions than removals, then more removals.
      const bool insert = random() % 10 < (i / 15000 % 2 == 0 ? 7 : 3);
      const uint64_t hash = TableHash(random() % hashes);
      if (!insert) {
        const auto found = expected.find(hash);
        const int count = found == expected.end() ? 0 : found->second;
        ASSERT_EQ(lines.Remove(hash), count);
        expected.erase(hash);
      } else if (uint8_t* const count = lines.Find(hash)) {
        ASSERT_EQ(*count, expected[hash]);
        *count = expected[hash] = *count % 255 + 1;
      } else {
        ASSERT_EQ(expected.count(hash), 0u);
        expected[hash] = static_cast<int>(random() % 255 + 1);
        lines.Insert(hash, static_cast<uint8_t>(expected[hash]));
      }
      if (i % 5000 == 0) lines.Shrink();
      ASSERT_EQ(lines.size(), static_cast<int64_t>(expected.size()));
    }
    EXPECT_EQ(All(lines), expected);
  }
}

TEST(CounterLinesTest, CompareWholeHashes) {
  // Hashes that differ in one bit, also in those that choose stripe and line.
  CounterLines lines;
  const uint64_t hash = TableHash(42);
  lines.Insert(hash, 1);
  for (int bit = 0; bit < 64; ++bit) {
    ASSERT_EQ(lines.Find(hash ^ uint64_t{1} << bit), nullptr);
    lines.Insert(hash ^ uint64_t{1} << bit, static_cast<uint8_t>(bit + 2));
  }
  EXPECT_EQ(*lines.Find(hash), 1);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_EQ(*lines.Find(hash ^ uint64_t{1} << bit), bit + 2);
  }
}

TEST(CounterLinesTest, HoldHashesThatAllHaveOneHomeLine) {
  // More than `passed` can count.
  CounterLines lines;
  constexpr uint64_t kHashes = 4000;
  for (uint64_t i = 0; i < kHashes; ++i) lines.Insert(i << 32 | 5, 3);
  for (uint64_t i = 0; i < kHashes; i += 2) {
    ASSERT_EQ(lines.Remove(i << 32 | 5), 3);
  }
  for (uint64_t i = 0; i < kHashes; ++i) {
    ASSERT_EQ(lines.Find(i << 32 | 5) != nullptr, i % 2 == 1) << i;
  }
}

// The number of lines that a search for an absent hash reads on average.
double MeanSearchLength(const CounterLines& lines) {
  std::mt19937_64 random(3);
  constexpr int kSearches = 20000;
  size_t read = 0;
  for (int i = 0; i < kSearches; ++i) read += lines.SearchLength(random());
  return static_cast<double>(read) / kSearches;
}

TEST(CounterLinesTest, SearchesAreShort) {
  CounterLines lines;
  EXPECT_EQ(lines.SearchLength(5), 0u);
  double longest = 0;
  for (int i = 0; i < 30000; ++i) {
    lines.Insert(TableHash(i), 1);
    if (i % 500 == 0) longest = std::max(longest, MeanSearchLength(lines));
  }
  EXPECT_LT(longest, 1.5);
  for (int i = 30000; i < 600000; ++i) {
    lines.Remove(TableHash(i - 30000));
    lines.Insert(TableHash(i), 1);
    if (i % 10000 == 0) longest = std::max(longest, MeanSearchLength(lines));
  }
  EXPECT_LT(longest, 2);
}

// `passed` of a line that more counters passed than it can count is right
// again after a rebuild, which churn brings about.
TEST(CounterLinesTest, ChurnEndsLongSearches) {
  CounterLines lines;
  constexpr uint64_t kHashes = 4000;
  for (uint64_t i = 0; i < kHashes; ++i) lines.Insert(i << 32 | 5, 3);
  for (uint64_t i = 0; i < kHashes; ++i) lines.Remove(i << 32 | 5);
  EXPECT_GT(lines.SearchLength(5), 400u);
  const int64_t bytes = lines.bytes();
  for (uint64_t i = 0; i < 4 * kHashes; ++i) {
    lines.Insert(TableHash(i), 1);
    lines.Remove(TableHash(i));
  }
  EXPECT_EQ(lines.SearchLength(5), 1u);
  EXPECT_EQ(lines.bytes(), bytes);
}

TEST(CounterLinesTest, TakeLittleMemoryAndGiveItBack) {
  CounterLines lines;
  EXPECT_EQ(lines.bytes(), 0);
  EXPECT_EQ(lines.Find(5), nullptr);
  EXPECT_EQ(lines.Remove(5), 0);
  EXPECT_EQ(lines.bytes(), 0);
  constexpr int kCounters = 100000;
  for (int i = 0; i < kCounters; ++i) lines.Insert(TableHash(i), 1);
  const int64_t most = lines.bytes();
  EXPECT_LE(most, kCounters * 20);
  // Churn at the same size does not grow it beyond one size more.
  for (int i = kCounters; i < 20 * kCounters; ++i) {
    lines.Remove(TableHash(i - kCounters));
    lines.Insert(TableHash(i), 1);
  }
  EXPECT_LE(lines.bytes(), most * 8 / 5);
  for (int i = 19 * kCounters + 100; i < 20 * kCounters; ++i) {
    lines.Remove(TableHash(i));
  }
  lines.Shrink();
  EXPECT_EQ(lines.size(), 100);
  EXPECT_LE(lines.bytes(), 100 * 32);
  for (int i = 19 * kCounters; i < 19 * kCounters + 100; ++i) {
    EXPECT_NE(lines.Find(TableHash(i)), nullptr);
    lines.Remove(TableHash(i));
  }
  lines.Shrink();
  EXPECT_EQ(lines.bytes(), 0);
}

// The counters, and a model of them.
class Counted {
 public:
  void Advance(int64_t period) {
    CounterLines dropped[2];
    counters_.Advance(period, &dropped[0], &dropped[1]);
    period_ = std::max(period_, period);
    for (auto it = model_.begin(); it != model_.end();) {
      it = period_ - it->second.second > 1 ? model_.erase(it) : ++it;
    }
  }
  void Push(int64_t sign, int64_t occurrences, int n) {
    const auto found = model_.find(sign);
    const int64_t count =
        occurrences + (found == model_.end() ? 0 : found->second.first);
    ASSERT_EQ(counters_.Reaches(TableHash(sign), occurrences, n), count >= n);
    if (count < n) {
      model_[sign] = {count, period_};
    } else {
      counters_.Remove(TableHash(sign));
      model_.erase(sign);
    }
  }
  void Remove(int64_t sign) {
    counters_.Remove(TableHash(sign));
    model_.erase(sign);
  }
  void Check() const {
    ASSERT_EQ(counters_.Size(period_), static_cast<int64_t>(model_.size()));
    ASSERT_EQ(counters_.empty(), model_.empty());
  }
  AdmissionCounters& counters() { return counters_; }

 private:
  AdmissionCounters counters_{0.25};
  std::map<int64_t, std::pair<int64_t, int64_t>> model_;  // count, period
  int64_t period_ = 0;
};

TEST(AdmissionCountersTest, AreThoseOfAModel) {
  std::mt19937_64 random(11);
  for (const int n : {1, 2, 5, 255}) {
    Counted counted;
    int64_t period = 0;
    for (int i = 0; i < 30000; ++i) {
      const int64_t sign = static_cast<int64_t>(random() % 500);
      if (random() % 400 == 0) period += static_cast<int64_t>(random() % 4);
      // Sometimes an earlier one.
      counted.Advance(period - static_cast<int64_t>(random() % 3));
      if (random() % 20 == 0) {
        counted.Remove(sign);
      } else {
        const int64_t occurrences = random() % 50 == 0
                                        ? static_cast<int64_t>(random() % 400)
                                        : int64_t{1};
        counted.Push(sign, std::max<int64_t>(1, occurrences), n);
      }
      if (i % 1000 == 0) counted.counters().Shrink();
      ASSERT_NO_FATAL_FAILURE(counted.Check());
    }
  }
}

TEST(AdmissionCountersTest, SizeKnowsOfALaterPeriod) {
  CounterLines dropped[2];
  AdmissionCounters counters(0);
  counters.Reaches(1, 1, 9);
  counters.Advance(1, &dropped[0], &dropped[1]);
  counters.Reaches(2, 1, 9);
  EXPECT_EQ(counters.Size(1), 2);
  EXPECT_EQ(counters.Size(2), 1);
  EXPECT_EQ(counters.Size(3), 0);
  EXPECT_GT(counters.bytes(), 0);
}

TEST(AdmissionCountersTest, FreesWhatIsForgotten) {
  AdmissionCounters counters(0);
  for (int i = 0; i < 1000; ++i) counters.Reaches(TableHash(i), 1, 2);
  for (const int64_t period : {1, 2}) {
    CounterLines dropped[2];
    EXPECT_GT(counters.bytes(), 0);
    counters.Advance(period, &dropped[0], &dropped[1]);
  }
  EXPECT_EQ(counters.bytes(), 0);
}

}  // namespace
}  // namespace tf_ext
