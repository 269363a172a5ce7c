// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <optional>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/message.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table_absent.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {
namespace {

// Values of a block of the check for non-finite gradients.
constexpr int64_t kValuesPerBlock = 1 << 18;

bool AllFinite(const float* values, int64_t n) {
  // An exponent of all ones carries into the sign bit. Integers, because the
  // compiler turns this into vector instructions.
  uint32_t carry = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    carry |= (bits & 0x7f800000u) + 0x00800000u;
  }
  return (carry & 0x80000000u) == 0;
}

// Whether all are finite and their sign bits 0, as is not that of -0.
bool AllFiniteAndPositive(const float* values, int64_t n) {
  // As in AllFinite.
  uint32_t carry = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    carry |= bits | (bits + 0x00800000u);
  }
  return (carry & 0x80000000u) == 0;
}

// n if all are finite.
int64_t FirstNonFinite(const float* values, int64_t n,
                       const ParallelFor& parallel_for) {
  const int64_t blocks = std::max<int64_t>(1, n / kValuesPerBlock);
  std::atomic<int64_t> first{n};
  const auto check = [&](int64_t b) {
    const int64_t end = n * (b + 1) / blocks;
    int64_t i = n * b / blocks;
    if (AllFinite(values + i, end - i)) return;
    while (AllFinite(values + i, 1)) ++i;
    int64_t found = first.load();
    while (i < found && !first.compare_exchange_weak(found, i)) {
    }
  };
  RunBlocks(blocks, parallel_for, check);
  return first.load();
}

}  // namespace

Status Table::Create(const TableConfig& config, std::unique_ptr<Table>* table) {
  TF_EXT_RETURN_IF_ERROR(CheckTableConfig(config));
  try {
    table->reset(new Table(config));
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted("out of memory while making table \"" +
                                     config.name + "\".");
  }
  return Status::Ok();
}

Table::Table(const TableConfig& config)
    : config_(config),
      layout_(config),
      initializer_(config.initializer, config.name, config.seed, config.dim),
      rule_(config.rule, config.dim, layout_.offsets(),
            layout_.narrow(RoundingStream(config.seed, config.name))),
      last_seen_(config.last_seen == LastSeen::kNone
                     ? RowTime()
                     : RowTime(layout_.Find(kLastSeenField)->offset)),
      statistics_(layout_),
      shrinkage_(config.shrinks() ? std::make_unique<Shrinkage>(
                                        config.l2, config.l1, config.dim,
                                        layout_.Find(kShrunkField)->offset)
                                  : nullptr),
      absent_(MakeAbsentRows(config, layout_)),
      format_(std::make_unique<RowFormat>(
          layout_, &initializer_, RoundingStream(config.seed, config.name),
          &config_.unknown, shrinkage_.get(), absent_.get())),
      memory_(RowSlabs::ChunkBytes(layout_.stride())) {
  stripes_.reserve(kStripes);
  for (int i = 0; i < kStripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(i, format_.get(), &memory_));
  }
}

Table::~Table() = default;

Status Table::OutOfMemory() const {
  return Status::ResourceExhausted(
      "out of memory in table \"" + config_.name + "\", which has " +
      std::to_string(Size()) + " rows of " + std::to_string(layout_.stride()) +
      " bytes; use more shards, or erase rows. Part of the batch may have "
      "been applied.");
}

Status Table::FindField(const std::string& name, const Field** field) const {
  *field = layout_.Find(name);
  if (*field != nullptr) return Status::Ok();
  std::string allowed;
  for (const Field& each : layout_.fields()) {
    if (!allowed.empty()) allowed += ", ";
    allowed += each.name;
  }
  return Invalid("table \"", config_.name, "\" has no field \"", name,
                 "\"; its fields are ", allowed, ".");
}

Status Table::CheckStatistics(const int64_t* signs, int64_t n,
                              const float* statistics, int64_t width) const {
  const int64_t expected = config_.statistics_width();
  if (expected == 0 || statistics == nullptr) return Status::Ok();
  if (width != expected) {
    return Invalid("statistics has ", width, " columns; for table \"",
                   config_.name, "\" it must have ", expected,
                   ", or be empty.");
  }
  if (AllFiniteAndPositive(statistics, n * width)) return Status::Ok();
  for (int64_t i = 0; i < n * width; ++i) {
    const float value = statistics[i];
    if (value >= 0 && value <= std::numeric_limits<float>::max()) continue;
    return Invalid("statistics[", i / width, ", ", i % width, "] of sign ",
                   signs[i / width], " is ", statistics[i],
                   "; statistics must be finite and at least 0. Table \"",
                   config_.name, "\" was not changed.");
  }
  return Status::Ok();
}

Status Table::CheckPush(const PushBatch& batch,
                        const ParallelFor& parallel_for) const {
  TF_EXT_RETURN_IF_ERROR(CheckCount(batch.n));
  TF_EXT_RETURN_IF_ERROR(CheckStatistics(batch.signs, batch.n, batch.statistics,
                                         batch.statistics_width));
  Status status = rule_.Check(batch.hyperparameters, batch.hyperparameter_count,
                              batch.step);
  if (!status.ok()) {
    return Invalid(status.message(), " (table \"", config_.name, "\")");
  }
  // All rules that train begin with the learning rate.
  const double decay = batch.hyperparameters[0] * config_.l2;
  if (decay >= 1) {
    return Invalid("learning_rate of table \"", config_.name, "\" is ",
                   batch.hyperparameters[0], " and its l2 ", config_.l2,
                   "; their product must be less than 1, because a step "
                   "multiplies all rows by 1 - learning_rate * l2. Use a "
                   "smaller l2.");
  }
  if (absent_ != nullptr && decay >= absent_->history().most_decay()) {
    return Invalid("learning_rate of table \"", config_.name, "\" is ",
                   batch.hyperparameters[0], " and its l2 ", config_.l2,
                   "; their product must be less than ",
                   absent_->history().most_decay(),
                   ", as its rule moves absent rows. Use a smaller l2.");
  }
  const int64_t starts = batch.start_count * config_.dim;
  const int64_t bad_start =
      FirstNonFinite(batch.start_rows, starts, parallel_for);
  if (bad_start < starts) {
    return Invalid("start_rows[", bad_start / config_.dim, ", ",
                   bad_start % config_.dim, "] is ",
                   batch.start_rows[bad_start],
                   "; the weights of a shared row must be finite. Table \"",
                   config_.name, "\" was not changed.");
  }
  const int64_t values = batch.n * config_.dim;
  const int64_t bad = FirstNonFinite(batch.gradients, values, parallel_for);
  if (bad == values) return status;
  const int64_t i = bad / config_.dim;
  return Invalid("gradients[", i, ", ", bad % config_.dim, "] of sign ",
                 batch.signs[i], " is ", batch.gradients[bad],
                 "; gradients must be finite. Table \"", config_.name,
                 "\" was not changed. Look for NaN and "
                 "infinity in labels, sample weights and "
                 "features, lower the learning rate, clip "
                 "gradients, or leave such steps out with "
                 "on_nonfinite=\"skip\" of "
                 "tf_ext.optimizers.Optimizer.");
}

Status Table::PushChecked(const PushBatch& batch,
                          const ParallelFor& parallel_for, int64_t* updated) {
  *updated = 0;
  const float* const statistics = batch.statistics;
  const int64_t n = batch.n, step = batch.step;
  const LastSeen unit = config_.last_seen;
  const int32_t now =
      ToRowTime(unit, unit == LastSeen::kSecond ? batch.time : step);
  // Before any row gets this time, so that an eviction that encounters the row
  // does not take its time for a wrong one.
  last_push_ = now;
  const bool packed = statistics != nullptr && statistics_.width() > 0 &&
                      n <= std::numeric_limits<uint32_t>::max();
  const PushRecord record = {last_seen_, now, statistics_, statistics, packed};
  std::optional<PushAdmission> admission;
  if (config_.admission != nullptr) {
    admission.emplace(*config_.admission, config_.seed, step,
                      AdvancePeriod(config_.admission->PeriodOf(step)),
                      statistics, batch.statistics_width);
  }
  std::atomic<int64_t> total{0};
  Status status;
  try {
    AbsentHistory::Step absent = {nullptr, 0, step};
    if (absent_ != nullptr) {
      absent = absent_->history().Advance(batch.hyperparameters[0], step,
                                          config_.l2);
    }
    UpdateRule::Push push = rule_.Prepare(
        batch.hyperparameters, batch.hyperparameter_count, absent.step);
    if (absent_ != nullptr) {
      push.SetAbsent(*absent_, std::move(absent.before), absent.now);
    }
    if (shrinkage_ != nullptr) {
      push.SetShrinkage(*shrinkage_,
                        shrinkage_->Advance(batch.hyperparameters[0]));
    }
    std::optional<SharedPush> shared;
    if (config_.unknown.is_shared()) {
      shared.emplace(SharedPush{
          config_.unknown,
          {batch.start_signs, batch.start_rows, batch.start_count, config_.dim},
          statistics,
          batch.statistics_width,
          shrinkage_.get(),
          ShrinkageClock()});
    }
    const auto push_range = [&](const StripeRange& range, BatchItem* items,
                                int64_t count) {
      total += Stripe::Push(range, items, count, push, batch.gradients, record,
                            admission.has_value() ? &*admission : nullptr,
                            shared.has_value() ? &*shared : nullptr);
    };
    // So that the cache misses of several blocks overlap.
    constexpr int64_t kAtLeast = 4 * kBlock;
    status =
        packed
            ? ForEachRange(std::vector<CountedPart>{{batch.signs, n, statistics,
                                                     statistics_.width(), 0}},
                           kAtLeast, parallel_for, push_range)
            : ForEachRange(std::vector<SignPart>{{batch.signs, n, 0, 1}},
                           kAtLeast, parallel_for, push_range);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  ++changes_;
  updated_ += total;
  if (status.ok()) *updated = total;
  return status;
}

Status Table::Push(const int64_t* signs, const float* gradients, int64_t n,
                   const double* hyperparameters, int64_t hyperparameter_count,
                   int64_t step, const ParallelFor& parallel_for,
                   int64_t* updated, int64_t time, const float* statistics,
                   int64_t statistics_width) {
  *updated = 0;
  const PushBatch batch = {
      signs, gradients, n,          hyperparameters, hyperparameter_count,
      step,  time,      statistics, statistics_width};
  const Status status = CheckPush(batch, parallel_for);
  return status.ok() ? PushChecked(batch, parallel_for, updated) : status;
}

int64_t Table::AdvancePeriod(int64_t period) {
  int64_t latest = admission_period_.load();
  while (latest < period &&
         !admission_period_.compare_exchange_weak(latest, period)) {
  }
  return std::max(latest, period);
}

Status Table::Export(int64_t cursor, int64_t limit,
                     const std::vector<std::string>& fields,
                     ExportedRows* rows) const {
  if (cursor < 0) {
    return Invalid(
        "cursor is ", cursor,
        "; it must be 0 or the next_cursor of the export before, at least 0.");
  }
  if (limit < -1) {
    return Invalid("limit is ", limit,
                   "; it must be -1 (all rows) or at least "
                   "0.");
  }
  std::vector<const Field*> found(fields.size());
  for (size_t f = 0; f < fields.size(); ++f) {
    TF_EXT_RETURN_IF_ERROR(FindField(fields[f], &found[f]));
  }
  rows->signs.clear();
  rows->fields.assign(fields.size(), {});
  rows->next_cursor = -1;
  const bool raw =
      std::any_of(fields.begin(), fields.end(), [](const std::string& name) {
        return name == kShrunkField || name == kCaughtUpField;
      });
  const auto view = raw ? nullptr : AbsentNow();
  const ExportSink sink = {found,         raw ? nullptr : shrinkage_.get(),
                           absent_.get(), view.get(),
                           &rows->signs,  &rows->fields};
  const int64_t most = limit == -1 ? INT64_MAX : limit;
  uint64_t key = cursor & ((int64_t{1} << Stripe::kKeyBits) - 1);
  try {
    for (int64_t s = cursor >> Stripe::kKeyBits; s < kStripes;) {
      const int64_t copied = static_cast<int64_t>(rows->signs.size());
      const int64_t left = std::max<int64_t>(0, most - copied);
      if (key == 0) {
        if (stripes_[s]->ExportAll(left, sink)) {
          ++s;
          continue;
        }
        // Rather leave a stripe to the next call than read it by hashes.
        const int64_t size = stripes_[s]->Size();
        if (copied > 0 && size > left && size <= most) {
          rows->next_cursor = s << Stripe::kKeyBits;
          break;
        }
      }
      key = stripes_[s]->Export(key, std::min(left, Stripe::kExportedAtOnce),
                                sink);
      if (key == Stripe::kNoKey) {
        key = 0;
        ++s;
      } else if (static_cast<int64_t>(rows->signs.size()) >= most) {
        rows->next_cursor = s << Stripe::kKeyBits | static_cast<int64_t>(key);
        break;
      }
    }
  } catch (const std::bad_alloc&) {
    *rows = ExportedRows();
    return Status::ResourceExhausted(
        "out of memory while exporting rows of table \"" + config_.name +
        "\"; use a smaller limit.");
  }
  return Status::Ok();
}

Status Table::Import(const int64_t* signs, int64_t n,
                     const std::vector<ConstFieldData>& fields,
                     const ParallelFor& parallel_for) {
  TF_EXT_RETURN_IF_ERROR(CheckCount(n));
  std::vector<BoundField> bound;
  for (const ConstFieldData& each : fields) {
    const Field* field = nullptr;
    TF_EXT_RETURN_IF_ERROR(FindField(each.name, &field));
    for (const BoundField& before : bound) {
      if (before.offset != field->offset) continue;
      return Invalid("field \"", each.name,
                     "\" appears twice; each field of table "
                     "\"",
                     config_.name, "\" can be given once.");
    }
    const int64_t bytes = field->bytes();
    bound.push_back(
        {field->offset, bytes, static_cast<const uint8_t*>(each.data), bytes});
  }
  const int64_t now = ShrinkageClock();
  BindShrunk(&now, &bound);
  const auto view = AbsentNowFor(bound);
  Status status = ForEachStripe(
      signs, n, parallel_for, [&](int s, BatchItem* items, int64_t count) {
        stripes_[s]->Import(items, count, bound, view.get(),
                            /*restart=*/false);
      });
  ++changes_;
  return status;
}

Status Table::Erase(const int64_t* signs, int64_t n,
                    const ParallelFor& parallel_for, int64_t* erased) {
  const Status status = EraseSigns(signs, n, parallel_for, erased);
  ++changes_;
  CompactIfSparse(parallel_for);
  return status;
}

Status Table::EraseSigns(const int64_t* signs, int64_t n,
                         const ParallelFor& parallel_for, int64_t* erased) {
  *erased = 0;
  TF_EXT_RETURN_IF_ERROR(CheckCount(n));
  std::atomic<int64_t> total{0};
  Status status = ForEachStripe(signs, n, parallel_for,
                                [&](int s, BatchItem* items, int64_t count) {
                                  total += stripes_[s]->Erase(items, count);
                                });
  *erased = total;
  return status;
}

Status Table::Clear(int64_t* cleared) {
  *cleared = 0;
  admission_period_ = 0;
  Status status;
  try {
    for (const auto& stripe : stripes_) *cleared += stripe->Clear();
  } catch (const std::bad_alloc&) {
    // Of the marks of a chain.
    status = OutOfMemory();
  }
  ++changes_;
  return status;
}

int64_t Table::Size() const {
  int64_t size = 0;
  for (const auto& stripe : stripes_) size += stripe->Size();
  return size;
}

TableStats Table::Stats(bool with_probes) const {
  TableStats total;
  total.stripes = kStripes;
  total.row_bytes = layout_.stride();
  total.evicted = evicted_;
  total.updated = updated_;
  total.saturated = saturated_;
  total.min_stripe_rows = INT64_MAX;
  for (const auto& stripe : stripes_) {
    const Stripe::Stats stats =
        stripe->GetStats(admission_period_, with_probes);
    total.rows += stats.rows;
    total.free_rows += stats.free_rows;
    total.slab_bytes += stats.slab_bytes;
    total.index_bytes += stats.index_bytes;
    total.max_stripe_rows = std::max(total.max_stripe_rows, stats.rows);
    total.min_stripe_rows = std::min(total.min_stripe_rows, stats.rows);
    total.max_probe_length =
        std::max(total.max_probe_length, stats.max_probe_length);
    total.waiting += stats.waiting;
    total.counter_bytes += stats.counter_bytes;
    total.admitted += stats.admitted;
    total.saturated += stats.saturated;
  }
  return total;
}

const SignRows& Table::RowsOf(int64_t sign) const TF_EXT_UNCHECKED {
  return stripes_[StripeOf(TableHash(sign))]->rows();
}

std::vector<int64_t> Table::StripeSizes() const {
  std::vector<int64_t> sizes;
  for (const auto& stripe : stripes_) sizes.push_back(stripe->Size());
  return sizes;
}

}  // namespace tf_ext
