// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/unique.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

// Signs hashed ahead of the search, so that the misses of their slots overlap.
constexpr int64_t kBlock = 32;
constexpr size_t kMinSlots = 1 << 12;
// Scratch beyond what the batch needed is given back above this.
constexpr size_t kMaxKeptSlots = 1 << 18;
// With more shards a batch has too few signs in a stripe to gain by their
// order.
constexpr int64_t kMaxShardsByStripe = 64;

// Distinct signs in order of first appearance, found through a table of slots
// that hold a place in the order and half of the hash. A full hash table with
// the signs themselves would be twice the size, most of it never compared.
class Distinct {
 public:
  struct Entry {
    int64_t sign;
    int64_t count;
  };

  // Throws std::bad_alloc.
  void Run(const int64_t* signs, int64_t n, int32_t* inverse) {
    entries_.clear();
    if (slots_.empty()) slots_.resize(kMinSlots);
    uint64_t hashes[2][kBlock];
    HashBlock(signs, n, 0, hashes[0]);
    int current = 0;
    for (int64_t start = 0; start < n; start += kBlock, current ^= 1) {
      if (entries_.size() + kBlock > slots_.size() / 2) Grow();
      HashBlock(signs, n, start + kBlock, hashes[current ^ 1]);
      const int64_t count = std::min(kBlock, n - start);
      for (int64_t i = 0; i < count; ++i) {
        inverse[start + i] =
            static_cast<int32_t>(Add(signs[start + i], hashes[current][i]));
      }
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }

  // Makes ready for the next batch. The slots stay as many as the last batch
  // needed: the next one is likely to be of its kind.
  void Reset() noexcept {
    if (slots_.size() > kMaxKeptSlots && entries_.size() < slots_.size() / 16) {
      slots_ = std::vector<Slot>();
      entries_ = std::vector<Entry>();
    } else if (entries_.size() < slots_.size() / 16) {
      // A small batch does not pay for the slots of a large one.
      for (size_t place = 0; place < entries_.size(); ++place) {
        size_t at = SlotOf(TableHash(entries_[place].sign));
        while (slots_[at].place != place + 1) at = Next(at);
        slots_[at] = Slot();
      }
    } else {
      std::fill(slots_.begin(), slots_.end(), Slot());
    }
  }

 private:
  struct Slot {
    uint32_t place = 0;  // in entries_, plus 1; 0: empty
    uint32_t hash = 0;
  };

  void HashBlock(const int64_t* signs, int64_t n, int64_t start,
                 uint64_t* hashes) const {
    const int64_t count = std::min(kBlock, n - start);
    for (int64_t i = 0; i < count; ++i) {
      hashes[i] = TableHash(signs[start + i]);
      __builtin_prefetch(&slots_[SlotOf(hashes[i])]);
    }
  }

  size_t SlotOf(uint64_t hash) const { return hash & (slots_.size() - 1); }

  size_t Next(size_t at) const { return (at + 1) & (slots_.size() - 1); }

  size_t Add(int64_t sign, uint64_t hash) {
    const uint32_t high = static_cast<uint32_t>(hash >> 32);
    size_t at = SlotOf(hash);
    for (; slots_[at].place != 0; at = Next(at)) {
      if (slots_[at].hash != high) continue;
      Entry& entry = entries_[slots_[at].place - 1];
      if (entry.sign != sign) continue;
      ++entry.count;
      return slots_[at].place - 1;
    }
    entries_.push_back({sign, 1});
    slots_[at] = {static_cast<uint32_t>(entries_.size()), high};
    return entries_.size() - 1;
  }

  void Grow() {
    std::vector<Slot> grown(slots_.size() * 4);
    slots_.swap(grown);
    for (size_t place = 0; place < entries_.size(); ++place) {
      const uint64_t hash = TableHash(entries_[place].sign);
      size_t at = SlotOf(hash);
      while (slots_[at].place != 0) at = Next(at);
      slots_[at] = {static_cast<uint32_t>(place + 1),
                    static_cast<uint32_t>(hash >> 32)};
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::vector<Entry> entries_;
};

// Orders the distinct signs by shard and, in it, by stripe, keeping their order
// within each.
void OrderByShard(const std::vector<Distinct::Entry>& entries, int64_t n,
                  int64_t num_shards, UniqueSigns* unique, int32_t* inverse) {
  const int64_t stripes = num_shards <= kMaxShardsByStripe ? kStripes : 1;
  std::vector<int32_t> groups(entries.size());
  std::vector<int64_t> next(num_shards * stripes + 1, 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t sign = entries[i].sign;
    const int64_t shard = ShardOf(sign, num_shards);
    const int64_t stripe = stripes == 1 ? 0 : StripeOf(TableHash(sign));
    groups[i] = static_cast<int32_t>(shard * stripes + stripe);
    ++unique->split_sizes[shard];
    ++next[groups[i] + 1];
  }
  for (size_t group = 1; group < next.size(); ++group) {
    next[group] += next[group - 1];
  }
  std::vector<int32_t> moved_to(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t to = next[groups[i]]++;
    moved_to[i] = static_cast<int32_t>(to);
    unique->signs[to] = entries[i].sign;
    unique->counts[to] = entries[i].count;
  }
  for (int64_t i = 0; i < n; ++i) inverse[i] = moved_to[inverse[i]];
}

}  // namespace

Status UniqueByShard(const int64_t* signs, int64_t n, int64_t num_shards,
                     UniqueSigns* unique, int32_t* inverse) {
  if (n < 0 || n > std::numeric_limits<int32_t>::max()) {
    return Invalid("the number of signs is ", n,
                   "; it must be from 0 to 2147483647.");
  }
  if (num_shards < 1 || num_shards > kMaxShards) {
    return Invalid("num_shards is ", num_shards, "; it must be from 1 to ",
                   kMaxShards, ".");
  }
  // One a thread: made anew, the memory would cost as much as the work.
  static thread_local Distinct distinct;
  Status status;
  try {
    distinct.Run(signs, n, inverse);
    const std::vector<Distinct::Entry>& entries = distinct.entries();
    unique->signs.resize(entries.size());
    unique->counts.resize(entries.size());
    unique->split_sizes.assign(num_shards, 0);
    if (num_shards == 1) {
      unique->split_sizes[0] = static_cast<int64_t>(entries.size());
      for (size_t i = 0; i < entries.size(); ++i) {
        unique->signs[i] = entries[i].sign;
        unique->counts[i] = entries[i].count;
      }
    } else {
      OrderByShard(entries, n, num_shards, unique, inverse);
    }
  } catch (const std::bad_alloc&) {
    status = Status::ResourceExhausted(
        "out of memory while finding the distinct signs among " +
        std::to_string(n) + ".");
  }
  distinct.Reset();
  return status;
}

}  // namespace tf_ext
