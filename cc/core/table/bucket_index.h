// SPDX-License-Identifier: Apache-2.0
// The index of a stripe: maps the hash of a sign to the number of its row.
//
//   struct Bucket {          // 64 bytes, one cache line
//     uint8_t tags[12];      // derived from the hash; 0: the slot is empty
//     uint32_t overflow;     // entries that were inserted past this bucket
//     uint32_t rows[12];
//   };
//
// find:   starting at the home bucket, compare 12 tags at once, compare the
//         full sign in the row of each matching tag, and stop at a bucket that
//         no entry has passed (overflow 0).
// insert: into the first bucket with an empty slot; increment the overflow of
//         the full buckets on the way.
// erase:  empty the slot; decrement the overflow of the buckets on the way.
//         There are no tombstones; see Crowded for the effect of churn.
//
// Rationale: in a batch, every cache line is a miss, so the number of lines
// matters, above all of lines that could not be prefetched, which are those of
// signs outside of their home bucket. At the maximum load of 2/3, finding a
// present sign reads 1.02 buckets on average and an absent one 1.1; at half
// that load, just after growing, 1.00 each. At 4/5 it would be 1.09 and 1.6,
// and a pull from 10 million rows would take a fifth longer. The next bucket is
// adjacent in memory, where the hardware prefetches it. The number of buckets
// need not be a power of two, because the home is hash * buckets / 2^32, so a
// table can grow at any size (see stripe.h). The overflow counter replaces
// tombstones, as in F14 (Bronson, Shi: "Open-sourcing F14 for faster, more
// memory-efficient hash tables", 2019); it has 32 bits and cannot saturate.
//
// The index does not store signs: callers pass a function that determines
// whether a row has a given sign.
#ifndef TF_EXT_CC_CORE_TABLE_BUCKET_INDEX_H_
#define TF_EXT_CC_CORE_TABLE_BUCKET_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "cc/core/table/pages.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

class BucketIndex {
 public:
  static constexpr int kSlots = 12;

  BucketIndex() = default;
  // Throws std::bad_alloc.
  explicit BucketIndex(size_t buckets)
      : pages_(buckets * sizeof(Bucket), PageSize::kHuge), count_(buckets) {}

  BucketIndex(BucketIndex&& other) noexcept { swap(other); }
  BucketIndex& operator=(BucketIndex&& other) noexcept {
    swap(other);
    return *this;
  }
  void swap(BucketIndex& other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(count_, other.count_);
    std::swap(passed_, other.passed_);
  }

  // Whether the caller should build a larger index before the next insertion:
  // at 2/3 of the slots, or if churn has left entries so far from their home
  // buckets that searches take longer than in a newly filled index, where the
  // average distance is 1/12 of a bucket.
  bool Crowded(size_t entries) const {
    const size_t capacity = Capacity(count_);
    return entries >= capacity || passed_ > capacity / 8;
  }
  // The number of entries at which an index with `buckets` buckets is crowded.
  static size_t Capacity(size_t buckets) { return buckets * kSlots * 2 / 3; }
  size_t bytes() const { return pages_.bytes(); }

  // The bucket in which a search begins.
  const void* HomeBucket(uint64_t hash) const { return buckets() + Home(hash); }
  void Prefetch(uint64_t hash) const {
    __builtin_prefetch(buckets() + Home(hash));
  }

  // Returns a row that may have the sign, to be prefetched and compared; kNoRow
  // if the home bucket has none. If it has several, as for one sign in a
  // hundred, calls `other(row)` with each of the others.
  template <typename Other>
  uint32_t Candidate(uint64_t hash, const Other& other) const {
    if (count_ == 0) return kNoRow;
    const Bucket& bucket = buckets()[Home(hash)];
    const uint32_t matches = bucket.Match(Tag(hash));
    if (matches == 0) return kNoRow;
    for (uint32_t left = matches & (matches - 1); left != 0; left &= left - 1) {
      other(bucket.rows[__builtin_ctz(left)]);
    }
    return bucket.rows[__builtin_ctz(matches)];
  }

  // `is_row(row)`: whether the row has the sign that is searched for. Returns
  // kNoRow if it is absent.
  template <typename IsRow>
  uint32_t Find(uint64_t hash, const IsRow& is_row) const {
    return Walk(hash, is_row).row;
  }

  // The sign must be absent, and there must be fewer entries than slots.
  void Insert(uint64_t hash, uint32_t row) {
    size_t at = Home(hash);
    uint32_t empty = buckets()[at].Match(0);
    while (empty == 0) {
      ++buckets()[at].overflow;
      ++passed_;
      at = Next(at);
      empty = buckets()[at].Match(0);
    }
    const int slot = __builtin_ctz(empty);
    buckets()[at].tags[slot] = Tag(hash);
    buckets()[at].rows[slot] = row;
  }

  // Returns the row of the erased sign, or kNoRow if it is absent.
  template <typename IsRow>
  uint32_t Erase(uint64_t hash, const IsRow& is_row) {
    const Place place = Walk(hash, is_row);
    if (place.row == kNoRow) return kNoRow;
    buckets()[place.bucket].tags[place.slot] = 0;
    for (size_t at = Home(hash); at != place.bucket; at = Next(at)) {
      --buckets()[at].overflow;
      --passed_;
    }
    return place.row;
  }

  // Changes the entry of row `from`, which must be present, to row `to`.
  void Renumber(uint64_t hash, uint32_t from, uint32_t to) {
    const Place place =
        Walk(hash, [from](uint32_t row) { return row == from; });
    buckets()[place.bucket].rows[place.slot] = to;
  }

  // Walks visit the entries in the order of their home buckets, which is the
  // order of the lower 32 bits of the hash, whatever the number of buckets.
  size_t count() const { return count_; }
  // From bits 0 to 31 of the hash. The tag is from bits 32 to 47, and the
  // stripe from bits 58 to 63.
  size_t Home(uint64_t hash) const {
    return static_cast<size_t>(
        (static_cast<uint64_t>(static_cast<uint32_t>(hash)) * count_) >> 32);
  }
  // Calls visit(row) for all entries whose home bucket is `home`, and possibly
  // for some others.
  template <typename Visit>
  void VisitFrom(size_t home, const Visit& visit) const {
    size_t at = home;
    for (size_t looked = 0; looked < count_; ++looked) {
      buckets()[at].VisitAll(visit);
      if (buckets()[at].overflow == 0) return;
      at = Next(at);
    }
  }
  // Calls visit(row) for all entries of one bucket.
  template <typename Visit>
  void VisitBucket(size_t at, const Visit& visit) const {
    buckets()[at].VisitAll(visit);
  }

  // The number of buckets that Find reads.
  template <typename IsRow>
  int64_t ProbeLength(uint64_t hash, const IsRow& is_row) const {
    return static_cast<int64_t>(Walk(hash, is_row).looked);
  }

  // The maximum number of buckets that Find reads for a present sign.
  // `hash_of(row)`: the hash of a row's sign.
  template <typename HashOf>
  int64_t MaxProbeLength(const HashOf& hash_of) const {
    int64_t longest = 0;
    for (size_t at = 0; at < count_; ++at) {
      const Bucket& bucket = buckets()[at];
      const uint32_t used = ~bucket.Match(0) & kAllSlots;
      if (used == 0) continue;
      if (longest == 0) longest = 1;
      // If no entry passed the previous bucket, all entries here are at home.
      if (buckets()[at == 0 ? count_ - 1 : at - 1].overflow == 0) continue;
      for (uint32_t left = used; left != 0; left &= left - 1) {
        const size_t home = Home(hash_of(bucket.rows[__builtin_ctz(left)]));
        const size_t passed = at >= home ? at - home : at + count_ - home;
        const int64_t length = static_cast<int64_t>(passed) + 1;
        if (length > longest) longest = length;
      }
    }
    return longest;
  }

 private:
  static constexpr uint32_t kAllSlots = (1u << kSlots) - 1;

  struct alignas(Pages::kAlignment) Bucket {
    uint8_t tags[kSlots];
    uint32_t overflow;
    uint32_t rows[kSlots];

    // A bitmap of the slots with this tag.
    uint32_t Match(uint8_t tag) const {
#ifdef __SSE2__
      const __m128i all =
          _mm_load_si128(reinterpret_cast<const __m128i*>(tags));
      const __m128i equal =
          _mm_cmpeq_epi8(all, _mm_set1_epi8(static_cast<char>(tag)));
      return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & kAllSlots;
#else
      uint32_t matches = 0;
      for (int slot = 0; slot < kSlots; ++slot) {
        matches |= static_cast<uint32_t>(tags[slot] == tag) << slot;
      }
      return matches;
#endif
    }

    template <typename Visit>
    void VisitAll(const Visit& visit) const {
      uint32_t used = ~Match(0) & kAllSlots;
      for (; used != 0; used &= used - 1) visit(rows[__builtin_ctz(used)]);
    }
  };
  static_assert(sizeof(Bucket) == 64, "a bucket is one cache line");

  struct Place {
    uint32_t row;
    int slot;
    size_t bucket;
    size_t looked;  // number of buckets read
  };

  template <typename IsRow>
  Place Walk(uint64_t hash, const IsRow& is_row) const {
    const uint8_t tag = Tag(hash);
    size_t at = Home(hash);
    size_t looked = 0;
    // The bound is needed if every bucket of the index has been passed.
    while (looked < count_) {
      const Bucket& bucket = buckets()[at];
      ++looked;
      for (uint32_t left = bucket.Match(tag); left != 0; left &= left - 1) {
        const int slot = __builtin_ctz(left);
        if (is_row(bucket.rows[slot])) {
          return {bucket.rows[slot], slot, at, looked};
        }
      }
      if (bucket.overflow == 0) break;
      at = Next(at);
    }
    return {kNoRow, 0, 0, looked};
  }

  // 1 to 255.
  static uint8_t Tag(uint64_t hash) {
    const uint32_t bits = static_cast<uint16_t>(hash >> 32);
    return static_cast<uint8_t>(1 + ((bits * 255) >> 16));
  }
  size_t Next(size_t at) const { return at + 1 == count_ ? 0 : at + 1; }

  Bucket* buckets() const { return reinterpret_cast<Bucket*>(pages_.data()); }

  Pages pages_;
  size_t count_ = 0;
  size_t passed_ = 0;  // the sum of all overflows
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_BUCKET_INDEX_H_
