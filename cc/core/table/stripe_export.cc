// SPDX-License-Identifier: Apache-2.0
// Export of a stripe's rows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"

namespace tf_ext {
namespace {

// The distance, in buckets, at which an export prefetches rows: about two dozen
// rows ahead.
constexpr size_t kExportAhead = 4;

// The key by which an export orders rows. The lower half of the hash comes
// first, because this is the order of home buckets, whatever their number. The
// bits that all signs of a stripe have in common are omitted, and one more bit,
// because a cursor has only 63 bits.
uint64_t ExportKey(uint64_t hash) {
  constexpr int kUpperBits = Stripe::kKeyBits - 32;
  const uint64_t upper = (hash >> 33) & ((uint64_t{1} << kUpperBits) - 1);
  return (hash & 0xffffffff) << kUpperBits | upper;
}

}  // namespace

void ExportSink::Append(const uint8_t* const* rows, size_t n) const {
  for (size_t i = 0; i < n; ++i) {
    signs->push_back(RowSlabs::LoadSign(rows[i]));
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    const int64_t offset = fields[f]->offset;
    const int64_t bytes = fields[f]->bytes();
    std::vector<uint8_t>& to = (*values)[f];
    for (size_t i = 0; i < n; ++i) {
      const uint8_t* const at = rows[i] + offset;
      to.insert(to.end(), at, at + bytes);
    }
    if (view != nullptr || shrinkage == nullptr ||
        offset != RowLayout::kWeightsOffset)
      continue;
    shrinkage->ShrinkStored(rows, shrinkage->now(), n, fields[f]->type,
                            to.data() + (to.size() - n * bytes), bytes);
  }
  if (view == nullptr) return;
  const AbsentFields& moved = absent->fields();
  for (size_t i = 0; i < n; ++i) {
    const auto copy_of = [&](const AbsentFields::Moved& field) -> uint8_t* {
      for (size_t f = 0; f < fields.size(); ++f) {
        if (fields[f]->offset != field.offset) continue;
        std::vector<uint8_t>& copies = (*values)[f];
        return copies.data() + (copies.size() - (n - i) * fields[f]->bytes());
      }
      return nullptr;
    };
    absent->Store(*view, shrinkage, shrinkage == nullptr ? 0 : shrinkage->now(),
                  rows[i],
                  {copy_of(moved.weights), copy_of(moved.m), copy_of(moved.v)});
  }
}

void ExportSink::Truncate(size_t n) const {
  signs->resize(n);
  for (size_t f = 0; f < fields.size(); ++f) {
    (*values)[f].resize(n * fields[f]->bytes());
  }
}

bool Stripe::ExportAll(int64_t limit, const ExportSink& sink) const {
  const size_t before = sink.signs->size();
  uint64_t frees = 0;
  for (uint32_t row = 0; row != kNoRow;) {
    const SharedLock lock(mutex_);
    if (row == 0) frees = rows_.slabs.frees();
    if (rows_.slabs.frees() != frees || rows_.slabs.live() > limit) {
      sink.Truncate(before);
      return false;
    }
    row = rows_.slabs.NextLive(row);
    for (int64_t copied = 0; copied < kExportedAtOnce && row != kNoRow;) {
      const uint8_t* block[kBlock];
      int count = 0;
      for (; count < kBlock && row != kNoRow; ++count) {
        block[count] = rows_.slabs.At(row);
        row = rows_.slabs.NextLive(row + 1);
      }
      sink.Append(block, count);
      copied += count;
    }
  }
  return true;
}

uint64_t Stripe::Export(uint64_t key, int64_t limit,
                        const ExportSink& sink) const {
  std::vector<std::pair<uint64_t, const uint8_t*>> at_home;
  std::vector<const uint8_t*> rows;
  const SharedLock lock(mutex_);
  const BucketIndex& index = rows_.index;
  uint64_t next = kNoKey;
  for (size_t home = index.Home(key >> (kKeyBits - 32));
       home < index.count() && next == kNoKey; ++home) {
    if (home + kExportAhead < index.count()) {
      index.VisitBucket(home + kExportAhead, [this](uint32_t row) {
        mutex_.AssertReadable();
        PrefetchRow(rows_.slabs.At(row), format_->stride);
      });
    }
    at_home.clear();
    index.VisitFrom(home, [&](uint32_t row) {
      mutex_.AssertReadable();
      const uint8_t* const at = rows_.slabs.At(row);
      const uint64_t hash = TableHash(RowSlabs::LoadSign(at));
      if (index.Home(hash) == home && ExportKey(hash) >= key) {
        at_home.emplace_back(ExportKey(hash), at);
      }
    });
    std::sort(at_home.begin(), at_home.end());
    for (size_t i = 0; i < at_home.size(); ++i) {
      const uint64_t of_row = at_home[i].first;
      if (static_cast<int64_t>(rows.size()) >= limit &&
          (i == 0 || of_row != at_home[i - 1].first)) {
        next = of_row;
        break;
      }
      rows.push_back(at_home[i].second);
    }
  }
  sink.Append(rows.data(), rows.size());
  return next;
}

}  // namespace tf_ext
