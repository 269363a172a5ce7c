// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/bucket_index.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// The row number of each sign is the sign itself.
int64_t ProbeLength(const BucketIndex& index, int64_t sign) {
  return index.ProbeLength(TableHash(sign),
                           [sign](uint32_t row) { return row == sign; });
}

BucketIndex Filled(int64_t buckets, int64_t entries) {
  BucketIndex index(buckets);
  for (int64_t row = 0; row < entries; ++row) {
    index.Insert(TableHash(row), static_cast<uint32_t>(row));
  }
  return index;
}

TEST(BucketIndexTest, AnIndexWithoutBucketsIsNotLookedAt) {
  EXPECT_EQ(ProbeLength(BucketIndex(), 7), 0);
}

TEST(BucketIndexTest, OneBucketIsLookedAtWhereNoEntryWentPast) {
  const BucketIndex index = Filled(100, 1);
  for (const int64_t sign : {0, 1, 2, 3}) {
    EXPECT_EQ(ProbeLength(index, sign), 1) << sign;
  }
}

TEST(BucketIndexTest, AllBucketsAreLookedAtForAnAbsentSignWhenAllWerePassed) {
  // Buckets 0 and 1 are full, and entries have passed one or both of them.
  const BucketIndex index = Filled(2, 2 * BucketIndex::kSlots);
  int64_t longest = 0;
  for (int64_t sign = 100; sign < 200; ++sign) {
    longest = std::max(longest, ProbeLength(index, sign));
  }
  EXPECT_EQ(longest, 2);
}

TEST(BucketIndexTest, WhatWasErasedCrowdsNobody) {
  constexpr int64_t kEntries = 2 * BucketIndex::kSlots;
  BucketIndex index = Filled(2, kEntries);
  EXPECT_TRUE(index.Crowded(1));  // by entries far from their home buckets
  for (int64_t row = 0; row < kEntries; ++row) {
    const auto is_row = [row](uint32_t at) { return at == row; };
    EXPECT_EQ(index.Erase(TableHash(row), is_row), row);
  }
  EXPECT_FALSE(index.Crowded(1));
  for (int64_t sign = 0; sign < 100; ++sign) {
    EXPECT_EQ(ProbeLength(index, sign), 1) << sign;
  }
}

TEST(BucketIndexTest, AllRowsWithTheTagAreCandidates) {
  BucketIndex index(1);
  const uint64_t hash = TableHash(7), other_hash = TableHash(8);
  index.Insert(other_hash, 10);
  std::vector<uint32_t> others;
  const auto candidate = [&] {
    others.clear();
    return index.Candidate(hash, [&](uint32_t row) { others.push_back(row); });
  };
  EXPECT_EQ(candidate(), kNoRow);
  index.Insert(hash, 20);
  EXPECT_EQ(candidate(), 20);
  EXPECT_TRUE(others.empty());
  index.Insert(other_hash, 11);
  index.Insert(hash, 21);
  index.Insert(hash, 22);
  EXPECT_EQ(candidate(), 20);
  EXPECT_EQ(others, (std::vector<uint32_t>{21, 22}));
}

void ExpectMaximumOfProbes(int64_t buckets, int64_t entries, int64_t at_least) {
  const BucketIndex index = Filled(buckets, entries);
  int64_t longest = 0;
  for (int64_t sign = 0; sign < entries; ++sign) {
    longest = std::max(longest, ProbeLength(index, sign));
  }
  EXPECT_GE(longest, at_least);
  EXPECT_EQ(longest,
            index.MaxProbeLength([](uint32_t row) { return TableHash(row); }));
}

TEST(BucketIndexTest, TheLongestSearchForAPresentSignIsTheMaximum) {
  constexpr int64_t kBuckets = 1000;
  ExpectMaximumOfProbes(kBuckets, kBuckets * BucketIndex::kSlots * 4 / 5, 3);
}

TEST(BucketIndexTest, TheLongestSearchMayGoOnFromTheLastBucketToTheFirst) {
  for (int64_t buckets = 1; buckets <= 3; ++buckets) {
    const int64_t slots = buckets * BucketIndex::kSlots;
    for (int64_t entries = 0; entries <= slots; ++entries) {
      ExpectMaximumOfProbes(buckets, entries, entries > 0 ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace tf_ext
