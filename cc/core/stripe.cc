#include "cc/core/stripe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

namespace tf_ext {
namespace {

// Enough that the first prefetch of a block has arrived when the block is
// worked on, few enough that no line is evicted before.
constexpr int kBlock = 32;
// Of a longer row the hardware fetches the rest, once the start is read.
constexpr int64_t kMaxPrefetchBytes = 1024;
constexpr int kFirstBuckets = 4;

using SharedLock = std::shared_lock<std::shared_mutex>;
using ExclusiveLock = std::unique_lock<std::shared_mutex>;

void PrefetchRow(const uint8_t* row, int64_t bytes) {
  // Rows do not start at lines.
  const uintptr_t first = reinterpret_cast<uintptr_t>(row) & ~uintptr_t{63};
  const uintptr_t end = reinterpret_cast<uintptr_t>(row) + bytes;
  for (uintptr_t line = first; line < end; line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

template <int64_t kDim>
void CopyWeightsOfDim(const uint8_t* const* rows, const int64_t* positions,
                      int count, float* out) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(out + positions[i], rows[i] + RowLayout::kWeightsOffset,
                kDim * sizeof(float));
  }
}

// The common dims without a call of memcpy a row.
void CopyWeights(const uint8_t* const* rows, const int64_t* positions,
                 int count, int64_t dim, float* out) {
  switch (dim) {
    case 1:
      return CopyWeightsOfDim<1>(rows, positions, count, out);
    case 8:
      return CopyWeightsOfDim<8>(rows, positions, count, out);
    case 16:
      return CopyWeightsOfDim<16>(rows, positions, count, out);
    case 32:
      return CopyWeightsOfDim<32>(rows, positions, count, out);
    case 64:
      return CopyWeightsOfDim<64>(rows, positions, count, out);
    default:
      for (int i = 0; i < count; ++i) {
        std::memcpy(out + positions[i], rows[i] + RowLayout::kWeightsOffset,
                    dim * sizeof(float));
      }
  }
}

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

Stripe::Stripe(int number, const RowFormat* format)
    : number_(number), format_(format), rows_(format->stride) {}

template <typename Visit>
void Stripe::ForEachBlock(const BatchItem* items, int64_t n, int64_t row_bytes,
                          const Visit& visit,
                          const ChangeMarks* to_touch) const {
  row_bytes = std::min(row_bytes, kMaxPrefetchBytes);
  const auto hash_block = [this, items, n](int64_t start, uint64_t* hashes) {
    const int count =
        static_cast<int>(std::clamp<int64_t>(n - start, 0, kBlock));
    for (int i = 0; i < count; ++i) {
      hashes[i] = TableHash(items[start + i].sign);
      index_.Prefetch(hashes[i]);
    }
    return count;
  };
  uint64_t hashes[2][kBlock];
  uint32_t candidates[kBlock];
  int current = 0;
  int count = hash_block(0, hashes[0]);
  for (int64_t start = 0; start < n; start += kBlock, current ^= 1) {
    const int next = hash_block(start + kBlock, hashes[current ^ 1]);
    for (int i = 0; i < count; ++i) {
      candidates[i] = index_.Candidate(hashes[current][i]);
      if (candidates[i] == kNoRow) continue;
      PrefetchRow(rows_.At(candidates[i]), row_bytes);
    }
    if (to_touch != nullptr) to_touch->PrefetchToTouch(candidates, count);
    visit(start, count, hashes[current], candidates);
    count = next;
  }
}

inline uint32_t Stripe::Find(int64_t sign, uint64_t hash) const {
  return index_.Find(
      hash, [this, sign](uint32_t row) { return rows_.SignAt(row) == sign; });
}

inline bool Stripe::IsRow(uint32_t candidate, int64_t sign) const {
  return candidate != kNoRow && rows_.SignAt(candidate) == sign;
}

inline uint32_t Stripe::FindOrInsert(int64_t sign, uint64_t hash,
                                     uint32_t candidate, bool with_weights) {
  if (IsRow(candidate, sign)) return candidate;
  const uint32_t row = Find(sign, hash);
  if (row != kNoRow) return row;
  return Insert(sign, hash, with_weights);
}

uint32_t Stripe::Insert(int64_t sign, uint64_t hash, bool with_weights) {
  if (rows_.full()) throw StripeFullError("no row number left");
  if (index_.Crowded(static_cast<size_t>(rows_.live()))) Grow();
  if (marks_ != nullptr) marks_->Reserve(rows_.used() + 1);
  const uint32_t row = rows_.Allocate();
  format_->Start(rows_.At(row), sign, with_weights);
  index_.Insert(hash, row);
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
  uint32_t row = rows_.NextLive(0);
  while (row != kNoRow) {
    int count = 0;
    for (; count < kBlock && row != kNoRow; ++count) {
      numbers[count] = row;
      hashes[count] = TableHash(rows_.SignAt(row));
      grown.Prefetch(hashes[count]);
      row = rows_.NextLive(row + 1);
    }
    for (int i = 0; i < count; ++i) grown.Insert(hashes[i], numbers[i]);
  }
  index_ = std::move(grown);
  ++level_;
}

void Stripe::Pull(BatchItem* items, int64_t n, bool insert, float* out) {
  const int64_t absent = PullPresent(items, n, insert, out);
  if (absent > 0) PullInserting(items, absent, out);
}

int64_t Stripe::PullPresent(BatchItem* items, int64_t n, bool insert,
                            float* out) {
  const int64_t dim = format_->dim;
  const int64_t bytes = RowLayout::kWeightsOffset + dim * sizeof(float);
  int64_t absent = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    const uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    int present = 0;
    for (int i = 0; i < count; ++i) {
      const BatchItem item = items[start + i];
      uint32_t row = candidates[i];
      if (!IsRow(row, item.sign)) row = Find(item.sign, hashes[i]);
      if (row != kNoRow) {
        rows[present] = rows_.At(row);
        positions[present++] = item.position;
      } else if (insert) {
        items[absent++] = item;
      } else {
        format_->initializer->Fill(item.sign, out + item.position);
      }
    }
    CopyWeights(rows, positions, present, dim, out);
  };
  const SharedLock lock(mutex_);
  ForEachBlock(items, n, bytes, visit);
  return absent;
}

void Stripe::PullInserting(const BatchItem* items, int64_t n, float* out) {
  const int64_t dim = format_->dim;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    const uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      rows[i] =
          rows_.At(FindOrInsert(item.sign, hashes[i], candidates[i], true));
      positions[i] = item.position;
    }
    CopyWeights(rows, positions, count, dim, out);
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, visit);
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
      uint8_t* const row = rows_.At(numbers[i]);
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
  ForEachBlock(items, n, format_->stride, visit, marks_.get());
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
      uint8_t* const row = rows_.At(number);
      for (const BoundField& bound : fields) {
        std::memcpy(row + bound.offset,
                    bound.data + item.position * bound.stride, bound.bytes);
      }
    }
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, visit, marks_.get());
}

int64_t Stripe::Erase(const BatchItem* items, int64_t n) {
  int64_t erased = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t*) {
    for (int i = 0; i < count; ++i) {
      // Not the candidate: an earlier item may have erased it, and what is
      // left in a free row's sign can be any number.
      const int64_t sign = items[start + i].sign;
      const uint32_t row = index_.Erase(hashes[i], [this, sign](uint32_t at) {
        return rows_.SignAt(at) == sign;
      });
      if (row == kNoRow) continue;
      if (marks_ != nullptr) marks_->Erase(row, sign);
      rows_.Free(row);
      ++erased;
    }
  };
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->ReserveErased(n);
  ForEachBlock(items, n, RowLayout::kWeightsOffset, visit);
  return erased;
}

int64_t Stripe::Clear() {
  // Unmapping takes a while; others need not wait for it.
  BucketIndex index;
  RowSlabs rows(format_->stride);
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) {
    marks_->ReserveErased(rows_.live());
    for (uint32_t row = rows_.NextLive(0); row != kNoRow;
         row = rows_.NextLive(row + 1)) {
      marks_->Erase(row, rows_.SignAt(row));
    }
    marks_->ForgetRows();
  }
  index_.swap(index);
  std::swap(rows_, rows);
  level_ = -1;
  return rows.live();
}

uint32_t Stripe::Export(uint32_t row, int64_t limit,
                        const ExportSink& sink) const {
  const SharedLock lock(mutex_);
  row = rows_.NextLive(row);
  while (row != kNoRow && limit > 0) {
    const uint8_t* rows[kBlock];
    int count = 0;
    for (; count < std::min<int64_t>(kBlock, limit) && row != kNoRow; ++count) {
      rows[count] = rows_.At(row);
      row = rows_.NextLive(row + 1);
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
  if (row >= rows_.used() || (changed && marks_ == nullptr)) return kNoRow;
  uint64_t mask = ~uint64_t{0} << (row % 64);
  const size_t words = (size_t{rows_.used()} + 63) / 64;
  for (size_t word = row / 64; word < words; ++word) {
    uint64_t bits = rows_.LiveBits(word) & mask;
    if (changed) bits &= marks_->Taken(word);
    mask = ~uint64_t{0};
    for (; bits != 0; bits &= bits - 1) {
      row = static_cast<uint32_t>(word * 64 + __builtin_ctzll(bits));
      if (*copied == limit) return row;
      std::memcpy(out, rows_.At(row), row_bytes);
      out += row_bytes;
      ++*copied;
    }
  }
  return kNoRow;
}

void Stripe::TrackChanges() {
  auto marks = std::make_unique<ChangeMarks>();
  const ExclusiveLock lock(mutex_);
  marks->Reserve(rows_.used());
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
  stats.rows = rows_.live();
  stats.free_rows = rows_.free();
  stats.slab_bytes = rows_.bytes();
  if (marks_ != nullptr) stats.slab_bytes += marks_->bytes();
  stats.index_bytes = static_cast<int64_t>(index_.bytes());
  stats.max_probe_length = index_.MaxProbeLength(
      [this](uint32_t row) { return TableHash(rows_.SignAt(row)); });
  return stats;
}

int64_t Stripe::Size() const {
  const SharedLock lock(mutex_);
  return rows_.live();
}

}  // namespace tf_ext
