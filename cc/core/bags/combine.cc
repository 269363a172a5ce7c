// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/combine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "cc/core/bags/singles.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

// Floats of a block of work: some 30 microseconds.
constexpr int64_t kFloatsPerBlock = 32 << 10;
constexpr int64_t kMaxBlocks = 64;

int64_t BlocksFor(int64_t floats) {
  return std::clamp<int64_t>(floats / kFloatsPerBlock, 1, kMaxBlocks);
}

// The divisor of a bag's sum; 0: the bag gives zeros.
float Divisor(Combiner combiner, const float* weights, int64_t begin,
              int64_t end) {
  if (begin == end) return 0;
  if (combiner == Combiner::kSum || combiner == Combiner::kMax) return 1;
  if (weights == nullptr) {
    const float count = static_cast<float>(end - begin);
    return combiner == Combiner::kMean ? count : std::sqrt(count);
  }
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const double weight = weights[i];
    sum += combiner == Combiner::kMean ? weight : weight * weight;
  }
  return static_cast<float>(combiner == Combiner::kMean ? sum : std::sqrt(sum));
}

// Reads the rows of values [begin, end) and writes their combination.
// Prefetches for values below `ahead_end`.
template <int64_t kDim>
void CombineBag(const Bags& bags, Combiner combiner, int64_t begin, int64_t end,
                int64_t ahead_end, float* __restrict out) {
  const int64_t dim = kDim == 0 ? bags.dim : kDim;
  const auto row_of = [&bags, dim](int64_t i) {
    return bags.rows + bags.inverse[i] * dim;
  };
  const float divisor = Divisor(combiner, bags.weights, begin, end);
  if (divisor == 0) {
    std::fill_n(out, dim, 0.0f);
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    if (i + kAhead < ahead_end) PrefetchFloats(row_of(i + kAhead), dim);
    const float* __restrict row = row_of(i);
    if (bags.weights != nullptr) {
      const float weight = bags.weights[i];
      if (i == begin) {
        for (int64_t d = 0; d < dim; ++d) out[d] = weight * row[d];
      } else {
        for (int64_t d = 0; d < dim; ++d) out[d] += weight * row[d];
      }
    } else if (i == begin) {
      std::memcpy(out, row, dim * sizeof(float));
    } else if (combiner == Combiner::kMax) {
      for (int64_t d = 0; d < dim; ++d) {
        out[d] = row[d] > out[d] ? row[d] : out[d];
      }
    } else {
      for (int64_t d = 0; d < dim; ++d) out[d] += row[d];
    }
  }
  if (divisor == 1) return;
  for (int64_t d = 0; d < dim; ++d) out[d] /= divisor;
}

// Rows [first, last) of the batch, all columns: what is written is then one
// piece of memory, and what is read one of each column.
template <int64_t kDim>
void CombineBatchRows(const Bags& bags, int64_t first, int64_t last,
                      int64_t stride, float* out) {
  if (bags.singles && bags.weights == nullptr) {
    return CopySingles<kDim>(bags, first, last, stride, out);
  }
  for (int64_t c = 0; c < bags.columns(); ++c) {
    const int64_t* const splits = bags.row_splits + c * bags.batch;
    const int64_t end = splits[last];
    for (int64_t i = splits[first]; i < std::min(splits[first] + kAhead, end);
         ++i) {
      PrefetchFloats(bags.rows + bags.inverse[i] * bags.dim, bags.dim);
    }
    for (int64_t b = first; b < last; ++b) {
      CombineBag<kDim>(bags, bags.combiners[c], splits[b], splits[b + 1], end,
                       out + b * stride + c * bags.dim);
    }
  }
}

void CombineTables(const Bags* tables, size_t count,
                   const ParallelFor& parallel_for, int64_t stride,
                   float* const* outs) {
  const int64_t batch = tables[0].batch;
  int64_t floats = 0;
  for (size_t t = 0; t < count; ++t) {
    const Bags& bags = tables[t];
    floats += std::max(bags.n, bags.columns() * batch) * bags.dim;
  }
  const int64_t blocks = std::clamp<int64_t>(floats / kFloatsPerBlock, 1,
                                             std::max<int64_t>(1, batch));
  RunBlocks(blocks, parallel_for, [&](int64_t block) {
    const int64_t first = batch * block / blocks;
    const int64_t last = batch * (block + 1) / blocks;
    for (size_t t = 0; t < count; ++t) {
      DispatchDim(tables[t].dim, [&](auto dim) {
        CombineBatchRows<decltype(dim)::value>(tables[t], first, last, stride,
                                               outs[t]);
      });
    }
  });
}

void SumSinglesInBlocks(const Bags& bags, const float* gradient,
                        const ParallelFor& parallel_for, float* rows_gradient) {
  // Every block reads all values to find those of its rows, which takes as long
  // as it takes to sum a tenth of them.
  constexpr int64_t kFloatsPerSumBlock = 6 * kFloatsPerBlock;
  constexpr int64_t kMaxSumBlocks = 8;
  const int64_t blocks =
      IsSerial(parallel_for)
          ? 1
          : std::clamp<int64_t>(bags.n * bags.dim / kFloatsPerSumBlock, 1,
                                kMaxSumBlocks);
  DispatchDim(bags.dim, [&](auto dim) {
    constexpr int64_t kDim = decltype(dim)::value;
    if (blocks == 1) return SumSingles<kDim>(bags, gradient, rows_gradient);
    RunBlocks(blocks, parallel_for, [&](int64_t block) {
      SumSinglesOf<kDim>(bags, gradient, bags.unique * block / blocks,
                         bags.unique * (block + 1) / blocks, rows_gradient);
    });
  });
}

// What one value adds to its row's gradient: scale * gradient. No gradient:
// nothing.
struct Contribution {
  const float* gradient;
  int32_t row;
  float scale;
};

float Dot(const float* __restrict a, const float* __restrict b, int64_t dim) {
  // Sums in lanes, or the compiler may not use vectors.
  constexpr int64_t kLanes = 8;
  float lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[d + lane] * b[d + lane];
    }
  }
  float sum = 0;
  for (; d < dim; ++d) sum += a[d] * b[d];
  for (const float lane : lanes) sum += lane;
  return sum;
}

// With D the divisor, y the combined vector, g its gradient and p_i = g . x_i:
//   sum:   dL/dw_i = p_i
//   mean:  dL/dw_i = (p_i - g . y) / D
//   sqrtn: dL/dw_i = (p_i - (g . y) w_i / D) / D
// where g . y = sum(w_i p_i) / D.
void WeightsGradientOfBag(const Bags& bags, Combiner combiner, int64_t begin,
                          int64_t end, float divisor, const float* gradient,
                          float* weights_gradient) {
  if (divisor == 0) {
    std::fill(weights_gradient + begin, weights_gradient + end, 0.0f);
    return;
  }
  double weighted = 0;
  for (int64_t i = begin; i < end; ++i) {
    const float* const row = bags.rows + bags.inverse[i] * bags.dim;
    weights_gradient[i] = Dot(gradient, row, bags.dim);
    weighted += static_cast<double>(bags.weights[i]) * weights_gradient[i];
  }
  if (combiner == Combiner::kSum) return;
  const float combined = static_cast<float>(weighted / divisor);
  for (int64_t i = begin; i < end; ++i) {
    const float share =
        combiner == Combiner::kMean ? 1 : bags.weights[i] / divisor;
    weights_gradient[i] = (weights_gradient[i] - combined * share) / divisor;
  }
}

// The gradient of a max bag, split between the values that reach the maximum.
// shares: [end - begin, dim].
void SharesOfMax(const Bags& bags, int64_t begin, int64_t end,
                 const float* gradient, float* shares) {
  constexpr int64_t kTile = 64;
  const int64_t dim = bags.dim;
  for (int64_t first = 0; first < dim; first += kTile) {
    const int64_t count = std::min(kTile, dim - first);
    float most[kTile];
    float reached[kTile] = {};
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = bags.rows + bags.inverse[i] * dim + first;
      for (int64_t d = 0; d < count; ++d) {
        most[d] = i == begin || row[d] > most[d] ? row[d] : most[d];
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = bags.rows + bags.inverse[i] * dim + first;
      for (int64_t d = 0; d < count; ++d) reached[d] += row[d] == most[d];
    }
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = bags.rows + bags.inverse[i] * dim + first;
      float* const share = shares + (i - begin) * dim + first;
      for (int64_t d = 0; d < count; ++d) {
        share[d] = row[d] == most[d] ? gradient[first + d] / reached[d] : 0;
      }
    }
  }
}

// Sums contributions by row. Values are first distributed to parts that own
// rows, in their order, so that a row's sum is the same whatever the number of
// threads, and no two threads write to one row.
class GradientSum {
 public:
  // Throws std::bad_alloc.
  GradientSum(const Bags& bags, const float* gradient, float* weights_gradient)
      : bags_(bags),
        gradient_(gradient),
        weights_gradient_(weights_gradient),
        columns_(bags.columns()),
        blocks_(BlocksFor(bags.n * bags.dim)),
        contributions_(new Contribution[bags.n]) {
    while (parts_ < blocks_) parts_ *= 2;
    places_.resize(blocks_ * parts_);
    int64_t max_values = 0;
    for (int64_t c = 0; c < columns_; ++c) {
      const int64_t begin = bags.row_splits[c * bags.batch];
      const int64_t end = bags.row_splits[(c + 1) * bags.batch];
      shares_offset_.push_back(max_values - begin);
      if (bags.combiners[c] == Combiner::kMax) max_values += end - begin;
    }
    shares_.reset(new float[max_values * bags.dim]);
  }

  void Run(const ParallelFor& parallel_for, float* rows_gradient) {
    RunBlocks(blocks_, parallel_for, [this](int64_t b) { Count(b); });
    int64_t place = 0;
    for (int64_t part = 0; part < parts_; ++part) {
      for (int64_t b = 0; b < blocks_; ++b) {
        place += std::exchange(places_[b * parts_ + part], place);
      }
    }
    RunBlocks(blocks_, parallel_for, [this](int64_t b) { Deal(b); });
    // After distribution, the place of the last block is where a part ends.
    const auto sum = [this, rows_gradient](int64_t part) {
      const int64_t* const ends = &places_[(blocks_ - 1) * parts_];
      const int64_t begin = part == 0 ? 0 : ends[part - 1];
      DispatchDim(bags_.dim, [&](auto dim) {
        SumPart<decltype(dim)::value>(part, begin, ends[part], rows_gradient);
      });
    };
    RunBlocks(parts_, parallel_for, sum);
  }

 private:
  // A part has every parts_-th run of this many rows: runs because threads
  // should not share cache lines, spread because frequent signs come first.
  static constexpr int kRunShift = 6;

  int64_t PartOf(int32_t row) const {
    return (row >> kRunShift) & (parts_ - 1);
  }
  int64_t FirstBag(int64_t block) const {
    return columns_ * bags_.batch * block / blocks_;
  }

  void Count(int64_t block) {
    int64_t* const counts = &places_[block * parts_];
    const int64_t end = bags_.row_splits[FirstBag(block + 1)];
    for (int64_t i = bags_.row_splits[FirstBag(block)]; i < end; ++i) {
      ++counts[PartOf(bags_.inverse[i])];
    }
  }

  void Deal(int64_t block) {
    for (int64_t bag = FirstBag(block); bag < FirstBag(block + 1); ++bag) {
      const int64_t begin = bags_.row_splits[bag];
      const int64_t end = bags_.row_splits[bag + 1];
      if (begin == end) continue;
      const int64_t c = bag / bags_.batch;
      const int64_t b = bag % bags_.batch;
      DealBag(begin, end, c, gradient_ + (b * columns_ + c) * bags_.dim,
              &places_[block * parts_]);
    }
  }

  void DealBag(int64_t begin, int64_t end, int64_t column,
               const float* gradient, int64_t* places) {
    const Combiner combiner = bags_.combiners[column];
    const float* const weights = bags_.weights;
    const float divisor = Divisor(combiner, weights, begin, end);
    if (weights_gradient_ != nullptr && weights != nullptr) {
      WeightsGradientOfBag(bags_, combiner, begin, end, divisor, gradient,
                           weights_gradient_);
    }
    int64_t step = 0;  // from the gradient of a value to the next one's
    float scale = 1 / divisor;
    if (divisor == 0) {
      gradient = nullptr;
    } else if (combiner == Combiner::kMax && end - begin > 1) {
      float* const shares =
          shares_.get() + (begin + shares_offset_[column]) * bags_.dim;
      SharesOfMax(bags_, begin, end, gradient, shares);
      gradient = shares;
      step = bags_.dim;
    }
    for (int64_t i = begin; i < end; ++i) {
      const int32_t row = bags_.inverse[i];
      if (weights != nullptr) scale = weights[i] / divisor;
      contributions_[places[PartOf(row)]++] = {gradient, row, scale};
      gradient += step;
    }
  }

  template <int64_t kDim>
  void SumPart(int64_t part, int64_t begin, int64_t end,
               float* rows_gradient) const {
    const int64_t dim = kDim == 0 ? bags_.dim : kDim;
    constexpr int64_t kRun = int64_t{1} << kRunShift;
    for (int64_t row = part * kRun; row < bags_.unique; row += parts_ * kRun) {
      const int64_t rows = std::min(kRun, bags_.unique - row);
      std::fill_n(rows_gradient + row * dim, rows * dim, 0.0f);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) {
        const Contribution& ahead = contributions_[i + kAhead];
        PrefetchFloats(rows_gradient + ahead.row * dim, dim);
        if (ahead.gradient != nullptr) PrefetchFloats(ahead.gradient, dim);
      }
      const Contribution& contribution = contributions_[i];
      if (contribution.gradient == nullptr) continue;
      const float* __restrict from = contribution.gradient;
      float* __restrict to = rows_gradient + contribution.row * dim;
      const float scale = contribution.scale;
      for (int64_t d = 0; d < dim; ++d) to[d] += scale * from[d];
    }
  }

  const Bags& bags_;
  const float* const gradient_;
  float* const weights_gradient_;
  const int64_t columns_;
  const int64_t blocks_;
  int64_t parts_ = 1;                              // a power of two
  std::vector<int64_t> places_;                    // [blocks, parts]
  std::unique_ptr<Contribution[]> contributions_;  // [n], by part
  std::unique_ptr<float[]> shares_;     // [values of max columns, dim]
  std::vector<int64_t> shares_offset_;  // [columns], added to a value's place
};

std::string Found(const char* what, int64_t position, int64_t value) {
  return std::string(what) + "[" + std::to_string(position) + "] is " +
         std::to_string(value);
}

Status CheckSplits(const Bags& bags) {
  const int64_t count = bags.columns() * bags.batch;
  const int64_t* const splits = bags.row_splits;
  if (bags.singles) return Status::Ok();
  if (splits[0] != 0) {
    return Invalid(Found("row_splits", 0, splits[0]), "; it must be 0.");
  }
  // Without a branch for each.
  bool falls = false;
  for (int64_t i = 1; i <= count; ++i) falls |= splits[i] < splits[i - 1];
  if (falls) {
    int64_t i = 1;
    while (splits[i] >= splits[i - 1]) ++i;
    return Invalid(Found("row_splits", i, splits[i]), ", below the ",
                   splits[i - 1], " before it; splits must not decrease.");
  }
  if (splits[count] != bags.n) {
    return Invalid(Found("row_splits", count, splits[count]),
                   "; the last one must be the number of values, ", bags.n,
                   ".");
  }
  return Status::Ok();
}

Status CheckInverse(const Bags& bags) {
  // As unsigned a negative value is too large as well.
  uint32_t most = 0;
  for (int64_t i = 0; i < bags.n; ++i) {
    most = std::max(most, static_cast<uint32_t>(bags.inverse[i]));
  }
  if (bags.n == 0 || static_cast<int64_t>(most) < bags.unique) {
    return Status::Ok();
  }
  int64_t i = 0;
  while (bags.inverse[i] >= 0 && bags.inverse[i] < bags.unique) ++i;
  return Invalid(Found("inverse", i, bags.inverse[i]),
                 "; it must be at least 0 and below the "
                 "number of rows, ",
                 bags.unique, ".");
}

}  // namespace

Status ParseCombiner(const std::string& name, Combiner* combiner) {
  constexpr std::pair<const char*, Combiner> kNames[] = {
      {"sum", Combiner::kSum},
      {"mean", Combiner::kMean},
      {"sqrtn", Combiner::kSqrtn},
      {"max", Combiner::kMax},
  };
  for (const auto& entry : kNames) {
    if (name != entry.first) continue;
    *combiner = entry.second;
    return Status::Ok();
  }
  return Invalid("combiner is \"", name,
                 "\"; it must be one of sum, mean, sqrtn, "
                 "max.");
}

bool HaveOneValueEach(const Bags& bags) {
  const int64_t count = bags.columns() * bags.batch;
  if (bags.n != count) return false;
  // Without a branch for each.
  int64_t differences = 0;
  for (int64_t i = 0; i <= count; ++i) differences |= bags.row_splits[i] ^ i;
  return differences == 0;
}

Status CheckBags(const Bags& bags) {
  if (bags.combiners.empty()) {
    return Status::InvalidArgument(
        "there are no combiners; one a column is needed.");
  }
  if (bags.batch < 0 || bags.dim < 1) {
    return Invalid("batch is ", bags.batch, " and dim is ", bags.dim,
                   "; they must be at least 0 and at least 1.");
  }
  if (bags.weights != nullptr) {
    for (size_t c = 0; c < bags.combiners.size(); ++c) {
      if (bags.combiners[c] != Combiner::kMax) continue;
      return Invalid("column ", c,
                     " has combiner max and weights; max takes no weights.");
    }
  }
  const Status status = CheckSplits(bags);
  return status.ok() ? CheckInverse(bags) : status;
}

void CombineBags(const Bags& bags, const ParallelFor& parallel_for,
                 float* out) {
  CombineTables(&bags, 1, parallel_for, bags.columns() * bags.dim, &out);
}

void CombineBags(const std::vector<Bags>& tables,
                 const ParallelFor& parallel_for, int64_t stride,
                 const std::vector<float*>& outs) {
  CombineTables(tables.data(), tables.size(), parallel_for, stride,
                outs.data());
}

Status CombineBagsGradient(const Bags& bags, const float* gradient,
                           const ParallelFor& parallel_for,
                           float* rows_gradient, float* weights_gradient) {
  if (bags.singles && bags.weights == nullptr) {
    SumSinglesInBlocks(bags, gradient, parallel_for, rows_gradient);
    return Status::Ok();
  }
  try {
    GradientSum(bags, gradient, weights_gradient)
        .Run(parallel_for, rows_gradient);
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted(
        "out of memory for the gradient of " + std::to_string(bags.n) +
        " values of dim " + std::to_string(bags.dim) + ".");
  }
  return Status::Ok();
}

}  // namespace tf_ext
