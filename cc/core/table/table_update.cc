// SPDX-License-Identifier: Apache-2.0
// In-place updates of a table: rows are overwritten, and rows that are no
// longer present are erased last.
#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/sign_set.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {
namespace {

// Signs that are erased, and rows that are examined, per hold of a stripe's
// lock: a reader waits for tens of microseconds.
constexpr int64_t kSignsAtOnce = 8192;  // 128 per stripe
constexpr uint32_t kRowsAtOnce = 1024;

}  // namespace

struct Table::Update {
  int64_t number;
  bool whole;
  mutable SharedMutex mutex;
  // Signs that the last chunk with an entry for them erases.
  SignSet erased TF_EXT_GUARDED_BY(mutex);
};

void Table::StopTracking() {
  for (const auto& stripe : stripes_) stripe->StopTracking();
}

std::string Table::Held() const {
  const ExclusiveLock lock(chain_mutex_);
  return changes_ == held_changes_ ? held_ : "";
}

Status Table::BeginUpdate(const std::string& base, bool whole,
                          int64_t* number) {
  const ExclusiveLock lock(chain_mutex_);
  const std::string held = changes_ == held_changes_ ? held_ : "";
  if (!base.empty() && held != base) {
    return Status::FailedPrecondition(
        "table \"" + config_.name + "\" holds " +
        (held.empty() ? "the rows of no snapshot" : "those of " + held) +
        ", so what continues " + base + " cannot be applied.");
  }
  if (whole && !(chain_.empty() && saving_.empty())) {
    return Status::FailedPrecondition(
        "table \"" + config_.name +
        "\" has a chain of incremental snapshots, which has to end before all "
        "rows are replaced.");
  }
  try {
    auto update = std::make_shared<Update>();
    if (whole) {
      // Marks the rows that the update sets.
      for (const auto& stripe : stripes_) stripe->TrackChanges();
    } else if (update_ != nullptr && update_->whole) {
      StopTracking();
    }
    update_ = std::move(update);
  } catch (const std::bad_alloc&) {
    if (whole) StopTracking();
    update_ = nullptr;
    return OutOfMemory();
  }
  held_.clear();
  held_changes_ = ++changes_;
  *number = update_->number = held_changes_;
  update_->whole = whole;
  return Status::Ok();
}

Status Table::FindUpdate(std::shared_ptr<Update>* update) const {
  const ExclusiveLock lock(chain_mutex_);
  *update = update_;
  if (update_ != nullptr) return Status::Ok();
  return Status::FailedPrecondition(
      "table \"" + config_.name +
      "\" is not being updated: another load or save has begun meanwhile.");
}

Status Table::GatherErased(const StoredRows& stored, const ChunkView& chunk) {
  std::shared_ptr<Update> update;
  TF_EXT_RETURN_IF_ERROR(FindUpdate(&update));
  const ExclusiveLock lock(update->mutex);
  const auto add = [&update, &stored](const uint8_t* signs, int64_t n) {
    update->mutex.AssertHeld();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sign = RowSlabs::LoadSign(signs + i * sizeof(int64_t));
      if (ShardOf(sign, stored.shards) != stored.shard) continue;
      update->erased.Add(sign);
    }
  };
  try {
    add(chunk.signs_before, chunk.erased_before);
    for (int64_t i = 0; i < chunk.rows && update->erased.size() > 0; ++i) {
      update->erased.Remove(
          RowSlabs::LoadSign(chunk.row_data + i * stored.row_bytes));
    }
    add(chunk.signs_after, chunk.erased_after);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  return Status::Ok();
}

Status Table::UpdateRows(const StoredRows& stored, const ChunkView& chunk,
                         int64_t* rows) {
  *rows = 0;
  std::shared_ptr<Update> update;
  TF_EXT_RETURN_IF_ERROR(FindUpdate(&update));
  const SharedLock lock(update->mutex);
  const SignSet* const skipped =
      update->erased.size() > 0 ? &update->erased : nullptr;
  try {
    return ImportStored(stored, chunk, skipped, rows);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

Status Table::EndUpdate(int64_t number, bool completed, const std::string& id,
                        bool* held) {
  *held = false;
  {
    const ExclusiveLock lock(chain_mutex_);
    if (update_ == nullptr || update_->number != number) return Status::Ok();
    const std::shared_ptr<Update> update = std::move(update_);
    update_ = nullptr;
    const Status status = completed ? EraseGone(*update) : Status::Ok();
    if (update->whole) StopTracking();
    if (!completed || !status.ok()) return status;
    held_ = id;
    *held = !id.empty() && changes_ == held_changes_;
  }
  CompactIfSparse(SerialFor);
  return Status::Ok();
}

Status Table::EraseGone(const Update& update) {
  if (update.whole) {
    for (const auto& stripe : stripes_) {
      const RowWalk walk(*stripe);
      uint32_t row = 0;
      while (row != kNoRow) row = stripe->EraseUntouched(row, kRowsAtOnce);
    }
    return Status::Ok();
  }
  try {
    const SharedLock lock(update.mutex);
    const std::vector<int64_t> signs = update.erased.Signs();
    const int64_t n = static_cast<int64_t>(signs.size());
    for (int64_t begin = 0; begin < n; begin += kSignsAtOnce) {
      int64_t erased;
      TF_EXT_RETURN_IF_ERROR(EraseSigns(signs.data() + begin,
                                        std::min(kSignsAtOnce, n - begin),
                                        SerialFor, &erased));
    }
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace tf_ext
