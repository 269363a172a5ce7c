#include "cc/core/stripe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cc/core/mix.h"
#include "cc/core/read_rows.h"

namespace tf_ext {
namespace {

constexpr int kFirstBuckets = 4;

using SharedLock = std::shared_lock<StripeMutex>;
using ExclusiveLock = std::unique_lock<StripeMutex>;

// A filter before the comparison with all rows of a block.
class SeenHashes {
 public:
  // False if the hash was never added; adds it.
  bool MaybeSeen(uint64_t hash) {
    uint64_t& word = words_[(hash >> 6) % kWords];
    const uint64_t bit = uint64_t{1} << (hash % 64);
    const bool seen = (word & bit) != 0;
    word |= bit;
    return seen;
  }

 private:
  static constexpr int kWords = 64;
  uint64_t words_[kWords] = {};
};

}  // namespace

RowFormat::RowFormat(const RowLayout& layout,
                     const Initializer* row_initializer)
    : stride(layout.stride()),
      dim(layout.fields()[0].count),
      initializer(row_initializer) {
  const int64_t slots_offset =
      RowLayout::kWeightsOffset + layout.fields()[0].bytes();
  slots.resize(stride - slots_offset);
  for (size_t f = 1; f < layout.fields().size(); ++f) {
    const Field& field = layout.fields()[f];
    uint8_t* at = slots.data() + (field.offset - slots_offset);
    for (int64_t i = 0; i < field.count; ++i, at += kFieldTypeBytes) {
      if (field.type == FieldType::kFloat32) {
        const float start = static_cast<float>(field.start);
        std::memcpy(at, &start, sizeof(start));
      } else {
        const int32_t start = static_cast<int32_t>(field.start);
        std::memcpy(at, &start, sizeof(start));
      }
    }
  }
}

void RowFormat::Start(uint8_t* row, int64_t sign, bool with_weights) const {
  RowSlabs::StoreSign(row, sign);
  if (with_weights) {
    initializer->Fill(
        sign, reinterpret_cast<float*>(row + RowLayout::kWeightsOffset));
  }
  // An empty vector's data() may be null, which memcpy must not get.
  if (!slots.empty()) {
    std::memcpy(row + stride - slots.size(), slots.data(), slots.size());
  }
}

Stripe::Stripe(int number, const RowFormat* format, SlabMemory* memory)
    : number_(number),
      format_(format),
      memory_(memory),
      rows_{{}, {format->stride, memory}} {}

template <typename Visit>
void Stripe::ForEachBlock(const BatchItem* items, int64_t n, int64_t row_bytes,
                          bool touch, const Visit& visit) const {
  const ChangeMarks* const marks = touch ? marks_.get() : nullptr;
  LookUp(
      n, row_bytes, [items](int64_t i) { return items[i].sign; },
      [this](uint64_t) -> const SignRows& { return rows_; },
      [marks](const uint32_t* candidates, int count) {
        if (marks != nullptr) marks->PrefetchToTouch(candidates, count);
      },
      visit);
}

inline uint32_t Stripe::FindOrInsert(int64_t sign, uint64_t hash,
                                     uint32_t candidate, bool with_weights) {
  if (rows_.IsRow(candidate, sign)) return candidate;
  const uint32_t row = rows_.Find(sign, hash);
  if (row != kNoRow) return row;
  return Insert(sign, hash, with_weights);
}

uint32_t Stripe::Insert(int64_t sign, uint64_t hash, bool with_weights) {
  if (rows_.slabs.full()) throw StripeFullError("no row number left");
  if (rows_.index.Crowded(static_cast<size_t>(rows_.slabs.live()))) Grow();
  if (marks_ != nullptr) marks_->Reserve(rows_.slabs.used() + 1);
  const uint32_t row = rows_.slabs.Allocate();
  format_->Start(rows_.slabs.At(row), sign, with_weights);
  rows_.index.Insert(hash, row);
  if (marks_ != nullptr) marks_->Touch(&row, 1);
  return row;
}

size_t Stripe::BucketsAt(int level) const {
  const double phase = static_cast<double>(number_) / kStripes;
  return static_cast<size_t>(
      std::ceil(std::ldexp(kFirstBuckets * std::exp2(phase), level)));
}

void Stripe::Grow() {
  BucketIndex grown(BucketsAt(level_ + 1));
  // In the order of the rows: the larger part of the memory is then read in
  // sequence. Blocks, so that the misses in the index overlap.
  uint32_t numbers[kBlock];
  uint64_t hashes[kBlock];
  uint32_t row = rows_.slabs.NextLive(0);
  while (row != kNoRow) {
    int count = 0;
    for (; count < kBlock && row != kNoRow; ++count) {
      numbers[count] = row;
      hashes[count] = TableHash(rows_.slabs.SignAt(row));
      grown.Prefetch(hashes[count]);
      row = rows_.slabs.NextLive(row + 1);
    }
    for (int i = 0; i < count; ++i) grown.Insert(hashes[i], numbers[i]);
  }
  rows_.index = std::move(grown);
  ++level_;
}

void Stripe::Pull(BatchItem* items, int64_t n, bool insert, float* out) {
  int64_t absent;
  {
    const SharedLock lock(mutex_);
    absent = ReadRows(
        ItemPart{items, n}, format_->dim, *format_->initializer,
        [this](uint64_t) -> const SignRows& { return rows_; }, out,
        insert ? items : nullptr);
  }
  if (absent > 0) PullInserting(items, absent, out);
}

void Stripe::PullInserting(const BatchItem* items, int64_t n, float* out) {
  const int64_t dim = format_->dim;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    const uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      rows[i] = rows_.slabs.At(
          FindOrInsert(item.sign, hashes[i], candidates[i], true));
      positions[i] = item.position;
    }
    CopyWeights(rows, positions, count, dim, out);
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, false, visit);
}

void Stripe::Push(const BatchItem* items, int64_t n,
                  const UpdateRule::Push& push, const float* gradients) {
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    uint8_t* rows[kBlock];
    uint32_t numbers[kBlock];
    int64_t positions[kBlock];
    SeenHashes seen;
    int ready = 0;
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      numbers[i] = FindOrInsert(item.sign, hashes[i], candidates[i], true);
      uint8_t* const row = rows_.slabs.At(numbers[i]);
      if (seen.MaybeSeen(hashes[i]) &&
          std::find(rows, rows + ready, row) != rows + ready) {
        // The rows of one Update are distinct.
        if (marks_ != nullptr) marks_->Touch(numbers, i);
        push.Update(rows, gradients, positions, ready);
        ready = 0;
      }
      rows[ready] = row;
      positions[ready++] = item.position;
    }
    push.Update(rows, gradients, positions, ready);
    if (marks_ != nullptr) marks_->Touch(numbers, count);
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, true, visit);
}

void Stripe::Import(const BatchItem* items, int64_t n,
                    const std::vector<BoundField>& fields) {
  bool with_weights = true;
  for (const BoundField& bound : fields) {
    if (bound.offset == RowLayout::kWeightsOffset) with_weights = false;
  }
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      const uint32_t number =
          FindOrInsert(item.sign, hashes[i], candidates[i], with_weights);
      // At once: the next one may find no memory.
      if (marks_ != nullptr) marks_->Touch(&number, 1);
      uint8_t* const row = rows_.slabs.At(number);
      for (const BoundField& bound : fields) {
        std::memcpy(row + bound.offset,
                    bound.data + item.position * bound.stride, bound.bytes);
      }
    }
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, true, visit);
}

int64_t Stripe::Erase(const BatchItem* items, int64_t n) {
  int64_t erased = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t*) {
    for (int i = 0; i < count; ++i) {
      // Not the candidate: an earlier item may have erased it, and what is
      // left in a free row's sign can be any number.
      const int64_t sign = items[start + i].sign;
      const uint32_t row = rows_.index.Erase(
          hashes[i],
          [this, sign](uint32_t at) { return rows_.slabs.SignAt(at) == sign; });
      if (row == kNoRow) continue;
      if (marks_ != nullptr) marks_->Erase(row, sign);
      rows_.slabs.Free(row);
      ++erased;
    }
  };
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->ReserveErased(n);
  ForEachBlock(items, n, RowLayout::kWeightsOffset, false, visit);
  return erased;
}

int64_t Stripe::Clear() {
  // Unmapping takes a while; others need not wait for it.
  BucketIndex index;
  RowSlabs rows(format_->stride, memory_);
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) {
    marks_->ReserveErased(rows_.slabs.live());
    for (uint32_t row = rows_.slabs.NextLive(0); row != kNoRow;
         row = rows_.slabs.NextLive(row + 1)) {
      marks_->Erase(row, rows_.slabs.SignAt(row));
    }
    marks_->ForgetRows();
  }
  rows_.index.swap(index);
  std::swap(rows_.slabs, rows);
  level_ = -1;
  return rows.live();
}

uint32_t Stripe::Export(uint32_t row, int64_t limit,
                        const ExportSink& sink) const {
  const SharedLock lock(mutex_);
  row = rows_.slabs.NextLive(row);
  while (row != kNoRow && limit > 0) {
    const uint8_t* rows[kBlock];
    int count = 0;
    for (; count < std::min<int64_t>(kBlock, limit) && row != kNoRow; ++count) {
      rows[count] = rows_.slabs.At(row);
      row = rows_.slabs.NextLive(row + 1);
    }
    limit -= count;
    for (int i = 0; i < count; ++i) {
      sink.signs->push_back(RowSlabs::LoadSign(rows[i]));
    }
    for (size_t f = 0; f < sink.fields.size(); ++f) {
      const int64_t offset = sink.fields[f]->offset;
      const int64_t bytes = sink.fields[f]->bytes();
      std::vector<uint8_t>& values = (*sink.values)[f];
      for (int i = 0; i < count; ++i) {
        const uint8_t* const at = rows[i] + offset;
        values.insert(values.end(), at, at + bytes);
      }
    }
  }
  return row;
}

uint32_t Stripe::CopyRows(uint32_t row, int64_t limit, bool changed,
                          int64_t row_bytes, uint8_t* out,
                          int64_t* copied) const {
  const SharedLock lock(mutex_);
  *copied = 0;
  if (row >= rows_.slabs.used() || (changed && marks_ == nullptr))
    return kNoRow;
  uint64_t mask = ~uint64_t{0} << (row % 64);
  const size_t words = (size_t{rows_.slabs.used()} + 63) / 64;
  for (size_t word = row / 64; word < words; ++word) {
    uint64_t bits = rows_.slabs.LiveBits(word) & mask;
    if (changed) bits &= marks_->Taken(word);
    mask = ~uint64_t{0};
    for (; bits != 0; bits &= bits - 1) {
      row = static_cast<uint32_t>(word * 64 + __builtin_ctzll(bits));
      if (*copied == limit) return row;
      std::memcpy(out, rows_.slabs.At(row), row_bytes);
      out += row_bytes;
      ++*copied;
    }
  }
  return kNoRow;
}

void Stripe::TrackChanges() {
  auto marks = std::make_unique<ChangeMarks>();
  const ExclusiveLock lock(mutex_);
  marks->Reserve(rows_.slabs.used());
  marks_ = std::move(marks);
}

void Stripe::StopTracking() {
  const ExclusiveLock lock(mutex_);
  marks_ = nullptr;
}

void Stripe::TakeChanges() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->Take();
}

void Stripe::CommitChanges() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->Commit();
}

void Stripe::PutChangesBack() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->PutBack();
}

std::vector<int64_t> Stripe::ErasedSigns(bool taken) const {
  const SharedLock lock(mutex_);
  if (marks_ == nullptr) return {};
  return taken ? marks_->taken_erased() : marks_->current_erased();
}

Stripe::Stats Stripe::GetStats() const {
  const SharedLock lock(mutex_);
  Stats stats;
  stats.rows = rows_.slabs.live();
  stats.free_rows = rows_.slabs.free();
  stats.slab_bytes = rows_.slabs.bytes();
  if (marks_ != nullptr) stats.slab_bytes += marks_->bytes();
  stats.index_bytes = static_cast<int64_t>(rows_.index.bytes());
  stats.max_probe_length = rows_.index.MaxProbeLength(
      [this](uint32_t row) { return TableHash(rows_.slabs.SignAt(row)); });
  return stats;
}

int64_t Stripe::Size() const {
  const SharedLock lock(mutex_);
  return rows_.slabs.live();
}

}  // namespace tf_ext
