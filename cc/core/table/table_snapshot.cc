// SPDX-License-Identifier: Apache-2.0
// Snapshots of a table: its chain, and the conversion of rows to and from
// chunks.

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/sign_set.h"
#include "cc/core/support/message.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/row_conversion.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {
namespace {

// Bytes that are copied per lock hold: tens of microseconds, so that pushes are
// hardly delayed.
constexpr int64_t kMaxCopiedBytes = 64 << 10;

// Writes the chunks of one file.
class FileWriter {
 public:
  FileWriter(const ChunkFormat& format, const ChunkSink& sink,
             WrittenRows* written)
      : encoder_(format), sink_(sink), written_(written) {}

  Status WriteErased(const std::vector<int64_t>& signs, bool after) {
    const int64_t n = static_cast<int64_t>(signs.size());
    for (int64_t begin = 0; begin < n;) {
      const int64_t part = std::min(encoder_.RoomForSigns(), n - begin);
      encoder_.AddErased(signs.data() + begin, part, after);
      begin += part;
      if (begin == n) break;
      TF_EXT_RETURN_IF_ERROR(sink_(encoder_.Finish(false)));
    }
    written_->erased += n;
    return Status::Ok();
  }

  Status WriteRows(const Stripe& stripe, bool changed, int64_t row_bytes) {
    const RowWalk walk(stripe);
    uint32_t row = 0;
    while (row != kNoRow) {
      const int64_t room = encoder_.RoomForRows();
      if (room == 0) {
        TF_EXT_RETURN_IF_ERROR(sink_(encoder_.Finish(false)));
        continue;
      }
      const int64_t most = std::max<int64_t>(1, kMaxCopiedBytes / row_bytes);
      int64_t copied;
      row = stripe.CopyRows(row, std::min(room, most), changed, row_bytes,
                            encoder_.rows_end(), &copied);
      encoder_.AddRows(copied);
      written_->rows += copied;
    }
    return Status::Ok();
  }

  Status Finish() { return sink_(encoder_.Finish(true)); }

 private:
  ChunkEncoder encoder_;
  const ChunkSink& sink_;
  WrittenRows* const written_;
};

// Selects the rows that belong to the shard and are not skipped from `n` rows,
// each of which begins with its sign.
class OwnRows {
 public:
  OwnRows(const StoredRows& stored, const uint8_t* rows, int64_t n,
          int64_t row_bytes, const SignSet* skipped = nullptr)
      : data_(rows) {
    const auto is_own = [&](int64_t sign) {
      return ShardOf(sign, stored.shards) == stored.shard &&
             (skipped == nullptr || !skipped->Contains(sign));
    };
    signs_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sign = RowSlabs::LoadSign(rows + i * row_bytes);
      if (is_own(sign)) signs_.push_back(sign);
    }
    if (static_cast<int64_t>(signs_.size()) == n) return;
    copies_.reserve(signs_.size() * row_bytes);
    for (int64_t i = 0; i < n; ++i) {
      const uint8_t* const row = rows + i * row_bytes;
      if (!is_own(RowSlabs::LoadSign(row))) continue;
      copies_.insert(copies_.end(), row, row + row_bytes);
    }
    data_ = copies_.data();
  }

  const std::vector<int64_t>& signs() const { return signs_; }
  const uint8_t* data() const { return data_; }

 private:
  std::vector<int64_t> signs_;
  std::vector<uint8_t> copies_;
  const uint8_t* data_;
};

std::string Describe(FieldType type, int64_t count) {
  return std::string(FieldTypeName(type)) + "[" + std::to_string(count) + "]";
}

// Binds the fields of rows of `row_bytes` bytes from `data` on. Adjacent fields
// are copied at once; all are adjacent if the layouts are the same.
std::vector<BoundField> Bind(const std::vector<StoredCopy>& copies,
                             const uint8_t* data, int64_t row_bytes) {
  std::vector<BoundField> bound;
  for (const StoredCopy& copy : copies) {
    const int64_t bytes = copy.to->bytes();
    const uint8_t* const from = data + copy.from;
    if (!bound.empty()) {
      BoundField& last = bound.back();
      if (last.offset + last.bytes == copy.to->offset &&
          last.data + last.bytes == from) {
        last.bytes += bytes;
        continue;
      }
    }
    bound.push_back({copy.to->offset, bytes, from, row_bytes});
  }
  return bound;
}

}  // namespace

Status Table::BeginChainSave(const std::string& id, const std::string& base) {
  const ExclusiveLock lock(chain_mutex_);
  if (!saving_.empty()) {
    return Status::FailedPrecondition(
        "table \"" + config_.name + "\" is being saved as snapshot " + saving_ +
        " of its chain; " + id + " has to wait.");
  }
  if (id == ended_save_) {
    return Status::FailedPrecondition("the save of " + id + " of table \"" +
                                      config_.name +
                                      "\" was ended before it began.");
  }
  if (chain_ != base) {
    return Status::FailedPrecondition(
        "table \"" + config_.name + "\" has " +
        (chain_.empty() ? "no chain of incremental snapshots"
                        : "a chain whose last snapshot is " + chain_) +
        ", so " + id +
        (base.empty() ? " cannot begin another." : " cannot continue " + base) +
        (base.empty() ? "" : "."));
  }
  if (base.empty()) update_ = nullptr;
  try {
    for (const auto& stripe : stripes_) {
      if (base.empty()) stripe->TrackChanges();
    }
  } catch (const std::bad_alloc&) {
    StopTracking();
    return OutOfMemory();
  }
  if (!base.empty()) {
    for (const auto& stripe : stripes_) stripe->TakeChanges();
  }
  saving_ = id;
  return Status::Ok();
}

Status Table::EndChainSave(const std::string& id, bool committed) {
  const ExclusiveLock lock(chain_mutex_);
  if (saving_ != id || id.empty()) {
    // Whoever was interrupted does not know what began, nor what has ended. The
    // save may begin later, after its client has failed.
    if (!committed) {
      ended_save_ = id;
      return Status::Ok();
    }
    if (chain_ == id && !id.empty()) return Status::Ok();
    return Status::FailedPrecondition(
        "table \"" + config_.name + "\" is " +
        (saving_.empty() ? "not being saved" : "being saved as " + saving_) +
        ", so the save of " + id + " cannot end.");
  }
  saving_.clear();
  const bool first = chain_.empty();
  if (committed) chain_ = id;
  try {
    for (const auto& stripe : stripes_) {
      if (committed) {
        if (!first) stripe->CommitChanges();
      } else if (first) {
        stripe->StopTracking();
      } else {
        stripe->PutChangesBack();
      }
    }
  } catch (const std::bad_alloc&) {
    // It is no longer known what has changed.
    StopTracking();
    chain_.clear();
    return OutOfMemory();
  }
  return Status::Ok();
}

Status Table::SetChain(const std::string& id) {
  const ExclusiveLock lock(chain_mutex_);
  if (!saving_.empty()) {
    return Status::FailedPrecondition("table \"" + config_.name +
                                      "\" is being saved as snapshot " +
                                      saving_ + " of its chain.");
  }
  chain_.clear();
  update_ = nullptr;
  try {
    for (const auto& stripe : stripes_) {
      if (id.empty()) {
        stripe->StopTracking();
      } else {
        stripe->TrackChanges();
      }
    }
  } catch (const std::bad_alloc&) {
    StopTracking();
    return OutOfMemory();
  }
  chain_ = id;
  return Status::Ok();
}

std::string Table::Chain() const {
  const ExclusiveLock lock(chain_mutex_);
  return chain_;
}

Status Table::WriteRows(int first_stripe, int end_stripe, bool changed,
                        const ChunkFormat& format, const ChunkSink& sink,
                        WrittenRows* written) const {
  *written = WrittenRows();
  try {
    FileWriter writer(format, sink, written);
    Status status;
    const auto write_erased = [&](bool taken) {
      for (int s = first_stripe; s < end_stripe && changed && status.ok();
           ++s) {
        status = writer.WriteErased(stripes_[s]->ErasedSigns(taken), !taken);
      }
    };
    write_erased(true);
    for (int s = first_stripe; s < end_stripe && status.ok(); ++s) {
      status = writer.WriteRows(*stripes_[s], changed, format.row_bytes);
    }
    // Signs that were erased after the changes were taken. Their rows may be
    // missing above, and must not be read from the base instead.
    write_erased(false);
    return status.ok() ? writer.Finish() : status;
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted("out of memory while saving table \"" +
                                     config_.name + "\".");
  }
}

Status Table::ResolveStoredRows(const StoredRows& stored,
                                std::vector<StoredCopy>* copies) const {
  bool with_weights = false;
  for (const StoredField& each : stored.fields) {
    const Field* field = nullptr;
    TF_EXT_RETURN_IF_ERROR(FindField(each.name, &field));
    const bool fits = stored.converted == nullptr
                          ? field->type == each.type
                          : CanConvert(each.type, field->type);
    if (!fits || field->count != each.count) {
      return Invalid("field \"", each.name, "\" of table \"", config_.name,
                     "\" is ", Describe(field->type, field->count),
                     ", that of the snapshot is ",
                     Describe(each.type, each.count), ".");
    }
    const int64_t bytes = each.count * FieldTypeBytes(each.type);
    if (each.offset < RowLayout::kWeightsOffset || stored.row_bytes < bytes ||
        each.offset > stored.row_bytes - bytes) {
      return Invalid("field \"", each.name, "\" should be at byte ",
                     each.offset, " of the snapshot's rows, which have ",
                     stored.row_bytes, " bytes.");
    }
    with_weights |= field->offset == RowLayout::kWeightsOffset;
    copies->push_back({field, each.type, each.offset});
  }
  if (with_weights) return Status::Ok();
  return Invalid("the snapshot's rows have no field \"",
                 layout_.fields()[0].name, "\".");
}

Status Table::CheckStoredRows(const StoredRows& stored) const {
  std::vector<StoredCopy> unused;
  return ResolveStoredRows(stored, &unused);
}

Status Table::ApplyChunk(const StoredRows& stored, const ChunkView& chunk,
                         int64_t* rows) {
  *rows = 0;
  TF_EXT_RETURN_IF_ERROR(CheckStoredRows(stored));
  {
    const ExclusiveLock lock(chain_mutex_);
    if (update_ == nullptr) ++changes_;
  }
  try {
    TF_EXT_RETURN_IF_ERROR(
        EraseStored(stored, chunk.signs_before, chunk.erased_before));
    TF_EXT_RETURN_IF_ERROR(ImportStored(stored, chunk, nullptr, rows));
    const Status status =
        EraseStored(stored, chunk.signs_after, chunk.erased_after);
    CompactIfSparse(SerialFor);
    return status;
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

Status Table::ImportStored(const StoredRows& stored, const ChunkView& chunk,
                           const SignSet* skipped, int64_t* rows) {
  *rows = 0;
  std::vector<StoredCopy> copies;
  TF_EXT_RETURN_IF_ERROR(ResolveStoredRows(stored, &copies));
  const OwnRows own(stored, chunk.row_data, chunk.rows, stored.row_bytes,
                    skipped);
  const int64_t n = static_cast<int64_t>(own.signs().size());
  const uint8_t* data = own.data();
  int64_t row_bytes = stored.row_bytes;
  std::vector<uint8_t> converted;
  if (NeedsConversion(copies)) {
    ConversionCounts counts;
    converted =
        ConvertRows(copies, data, n, row_bytes, layout_.raw_bytes(), &counts);
    stored.converted->Add(counts);
    saturated_ += counts.saturated;
    data = converted.data();
    row_bytes = layout_.raw_bytes();
    for (StoredCopy& copy : copies) copy.from = copy.to->offset;
  }
  const bool partial = copies.size() < layout_.fields().size();
  std::vector<BoundField> fields = Bind(copies, data, row_bytes);
  const int64_t now = ShrinkageClock();
  BindShrunk(&now, &fields);
  const auto view = AbsentNowFor(fields);
  Status status = ForEachStripe(own.signs().data(), n, SerialFor,
                                [&](int s, BatchItem* items, int64_t count) {
                                  stripes_[s]->Import(items, count, fields,
                                                      view.get(), partial);
                                });
  if (status.ok()) *rows = n;
  return status;
}

Status Table::EraseStored(const StoredRows& stored, const uint8_t* signs,
                          int64_t n) {
  if (n == 0) return Status::Ok();
  const OwnRows own(stored, signs, n, sizeof(int64_t));
  int64_t erased;
  return EraseSigns(own.signs().data(), own.signs().size(), SerialFor, &erased);
}

}  // namespace tf_ext
