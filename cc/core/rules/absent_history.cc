// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/absent_history.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cc/core/rules/adam_powers.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

// What is left out of sums, and by how much polynomials and lines may differ,
// relative to a sum.
constexpr double kRest = 0x1p-25;
constexpr double kTolerance = 0x1p-23;

// The terms that the loops over rows are compiled for.
constexpr int kTerms[] = {3, AbsentWeights::kMostTerms};

// Of polynomials, where errors are looked for.
constexpr int kPoints = 33;

// Steps of a line: so that multiples of float slopes are exact enough.
constexpr int64_t kLongestLine = 1 << 16;

// Whatever the rate is, sums are finite in float32.
constexpr double kLargestAlpha = 1e10;
constexpr double kPowersLost = 40;

double Ratio(const AdamMoments& moments) {
  return moments.beta_1 / std::sqrt(moments.beta_2);
}

// After how many steps nothing is left; kMostSteps + 1 if there are more.
int64_t StepsOf(const AdamMoments& moments) {
  const double ratio = Ratio(moments);
  double left = ratio;
  int64_t steps = 1;
  // Not < and >=, as the ratio is NaN if both betas are 0.
  while (!(left <= kRest) && steps <= AbsentWeights::kMostSteps) {
    left *= ratio;
    ++steps;
  }
  return steps;
}

// The nodes of Chebyshev's interpolation on [0, 1], rounded: cosines of other
// machines could differ in their last bits.
std::vector<double> Nodes(int terms) {
  std::vector<double> nodes(terms);
  for (int i = 0; i < terms; ++i) {
    const double exact = 0.5 - 0.5 * std::cos(M_PI * (i + 0.5) / terms);
    nodes[i] = std::floor(exact * 0x1p24 + 0.5) * 0x1p-24;
  }
  return nodes;
}

// Coefficients of the polynomial through 1 / (1 + x change) at the nodes.
void Interpolate(const std::vector<double>& nodes, double change,
                 double* coefficients) {
  const int n = static_cast<int>(nodes.size());
  double differences[AbsentWeights::kMostTerms] = {};
  for (int i = 0; i < n; ++i) differences[i] = 1 / (1 + nodes[i] * change);
  for (int order = 1; order < n; ++order) {
    for (int i = n - 1; i >= order; --i) {
      differences[i] =
          (differences[i] - differences[i - 1]) / (nodes[i] - nodes[i - order]);
    }
  }
  // From Newton's form, by its last factor first.
  std::fill_n(coefficients, n, 0.0);
  coefficients[0] = differences[n - 1];
  for (int i = n - 2; i >= 0; --i) {
    for (int j = n - 1; j > 0; --j) {
      coefficients[j] = coefficients[j - 1] - nodes[i] * coefficients[j];
    }
    coefficients[0] = differences[i] - nodes[i] * coefficients[0];
  }
}

double ValueAt(const double* coefficients, int terms, double x) {
  double value = coefficients[terms - 1];
  for (int i = terms - 2; i >= 0; --i) value = value * x + coefficients[i];
  return value;
}

// What states are made of.
class Writer {
 public:
  template <typename T>
  void Put(const T* values, int64_t n) {
    if (n > 0) {
      bytes_.append(reinterpret_cast<const char*>(values), n * sizeof(T));
    }
  }
  void Put(int64_t value) { Put(&value, 1); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  bool Get(T* values, int64_t n) {
    const size_t size = static_cast<size_t>(n) * sizeof(T);
    if (bytes_.size() - at_ < size) return false;
    if (size > 0) std::memcpy(values, bytes_.data() + at_, size);
    at_ += size;
    return true;
  }
  // What is left.
  int64_t rest() const { return static_cast<int64_t>(bytes_.size() - at_); }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

template <typename T>
bool AllFinite(const T* values, int64_t n) {
  return std::all_of(values, values + n,
                     [](T value) { return std::isfinite(value); });
}

bool IsFloat(double value) {
  return std::abs(value) <= std::numeric_limits<float>::max();
}

Status BadState(const char* what) {
  return Invalid(
      "the state of steps in which rows were absent is damaged: ", what, ".");
}

constexpr int64_t kStateVersion = 1;

}  // namespace

Status AbsentWeights::Check(const AdamMoments& moments) {
  const auto refuse = [&](const char* what) {
    return Invalid(
        "beta_1 ", NumberText(moments.beta_1), " and beta_2 ",
        NumberText(moments.beta_2), " of dense_adam do not go together: ", what,
        ". Use a beta_2 closer to 1, such as 0.999, or the lazy adam.");
  };
  if (StepsOf(moments) > kMostSteps) {
    return refuse("beta_1 must be at most 0.9957 sqrt(beta_2)");
  }
  if (AbsentWeights(moments).terms() == 0) {
    return refuse("absent rows are not moved exactly enough");
  }
  return Status::Ok();
}

AbsentWeights::AbsentWeights(const AdamMoments& moments)
    : steps_(std::min(StepsOf(moments), kMostSteps)) {
  const double ratio = Ratio(moments);
  const double decay = std::sqrt(moments.beta_2);
  std::vector<double> powers(steps_), inverses(steps_);
  double power = 1, inverse = 1, sum = 0, weighted = 0;
  for (int64_t k = 0; k < steps_; ++k) {
    powers[k] = power *= ratio;
    inverses[k] = inverse /= decay;
    sum += power;
    weighted += power * inverse;
  }
  if (sum > 0) base_ = weighted / sum;
  for (double& each : inverses) each = each / base_ - 1;
  if (!AllFinite(powers.data(), steps_) || !AllFinite(inverses.data(), steps_))
    return;
  for (const int terms : kTerms) {
    if (Fit(powers, inverses, terms)) break;
  }
}

bool AbsentWeights::Fit(const std::vector<double>& powers,
                        const std::vector<double>& changes, int terms) {
  const std::vector<double> nodes = Nodes(terms);
  weights_.assign(steps_ * terms, 0);
  for (int64_t k = 0; k < steps_; ++k) {
    Interpolate(nodes, changes[k], &weights_[k * terms]);
  }
  for (int point = 0; point < kPoints; ++point) {
    const double x = point / (kPoints - 1.0);
    double sum = 0, errors = 0;
    for (int64_t k = 0; k < steps_; ++k) {
      const double exact = 1 / (1 + x * changes[k]);
      const double found = ValueAt(&weights_[k * terms], terms, x);
      sum += powers[k] * exact;
      errors += powers[k] * std::abs(found - exact);
    }
    if (!(errors <= kTolerance * sum)) return false;
  }
  for (int64_t k = 0; k < steps_; ++k) {
    for (int d = 0; d < terms; ++d) weights_[k * terms + d] *= powers[k];
  }
  terms_ = terms;
  return true;
}

const float* AbsentView::FindLine(int64_t step, int64_t* first) const {
  const auto first_of = [this](int64_t line) {
    return blocks_[line / AbsentLines::kLines]
        ->firsts[line % AbsentLines::kLines];
  };
  // The last line that does not begin after the step.
  int64_t line = 0;
  for (int64_t count = lines_; count > 1;) {
    const int64_t half = count / 2;
    line = first_of(line + half) <= step ? line + half : line;
    count -= half;
  }
  *first = first_of(line);
  return &blocks_[line / AbsentLines::kLines]
              ->values[line % AbsentLines::kLines * 2 * terms_];
}

void AbsentView::Get(int64_t step, float* sums) const {
  const int64_t ago = now_ - std::max<int64_t>(step, 0);
  if (ago <= 0) {
    std::fill_n(sums, terms_, 0.0f);
    return;
  }
  if (ago <= steps_) {
    std::copy_n(&recent_[(ago - 1) * terms_], terms_, sums);
    return;
  }
  int64_t first = open_first_;
  const float* line = open_;
  if (first < 0 || (step < first && lines_ > 0)) line = FindLine(step, &first);
  const float steps = static_cast<float>(std::max(step, first) - first);
  for (int d = 0; d < terms_; ++d) sums[d] = line[d] + line[terms_ + d] * steps;
}

AbsentHistory::AbsentHistory(const AdamMoments& moments)
    : moments_(moments),
      weights_(moments),
      most_decay_(1 - std::exp2(-kPowersLost / weights_.steps())),
      alphas_(weights_.steps()),
      grows_(weights_.steps()),
      sums_(weights_.steps() * weights_.terms()),
      grown_(weights_.steps()) {
  auto view = std::make_shared<AbsentView>();
  const ExclusiveLock lock(mutex_);
  FillView(view.get());
  view_ = std::move(view);
}

AbsentHistory::Step AbsentHistory::Advance(double learning_rate, int64_t step,
                                           double l2) {
  auto next = std::make_shared<AbsentView>();
  const ExclusiveLock lock(mutex_);
  const int64_t now = std::min(now_ + 1, kLast);
  const Step result = {view_, now, moments_.counts_pushes ? now : step};
  if (now == now_) return result;
  // All that may throw comes first.
  next->recent_.resize(std::min(now, weights_.steps()) * weights_.terms());
  if (lines_ == static_cast<int64_t>(blocks_.size()) * AbsentLines::kLines) {
    blocks_.push_back(std::make_shared<AbsentLines>(weights_.terms()));
  }
  next->blocks_.assign(blocks_.begin(), blocks_.end());
  const double alpha = AdamStepSize(learning_rate, moments_.beta_1,
                                    moments_.beta_2, result.step);
  AddStep(std::min(alpha, kLargestAlpha), 1 / (1 - learning_rate * l2));
  FillView(next.get());
  view_ = std::move(next);
  return result;
}

void AbsentHistory::AddStep(double alpha, double grow) {
  const int64_t ended = now_ - weights_.steps();
  if (ended >= 0) {
    AddFinal(ended, &sums_[ended % weights_.steps() * weights_.terms()]);
  }
  AddRecent(alpha, grow);
}

void AbsentHistory::AddRecent(double alpha, double grow) {
  const int64_t steps = weights_.steps();
  const int terms = weights_.terms();
  const int64_t now = now_ + 1;
  const int64_t begun = now_ % steps;
  std::fill_n(&sums_[begun * terms], terms, 0.0);
  grown_[begun] = 1;
  now_ = now;
  alphas_[now % steps] = alpha;
  grows_[now % steps] = grow;
  int64_t slot = begun;
  for (int64_t k = 1; k <= std::min(now, steps); ++k) {
    grown_[slot] *= grow;
    const double by = alpha * grown_[slot];
    const double* const weights = weights_.of(k);
    double* const sums = &sums_[slot * terms];
    for (int d = 0; d < terms; ++d) sums[d] += by * weights[d];
    slot = slot == 0 ? steps - 1 : slot - 1;
  }
}

void AbsentHistory::AddFinal(int64_t step, const double* sums) {
  if (open_.first >= 0 && Extend(step, sums)) return;
  const int terms = weights_.terms();
  if (open_.first >= 0) {
    AbsentLines& block = *blocks_[lines_ / AbsentLines::kLines];
    const int64_t line = lines_ % AbsentLines::kLines;
    block.firsts[line] = static_cast<int32_t>(open_.first);
    WriteOpenLine(&block.values[line * 2 * terms]);
    ++lines_;
  }
  open_.first = open_.last = step;
  std::copy_n(sums, terms, open_.base);
  std::fill_n(open_.low, terms, -std::numeric_limits<double>::max());
  std::fill_n(open_.high, terms, std::numeric_limits<double>::max());
}

bool AbsentHistory::Extend(int64_t step, const double* sums) {
  const double length = static_cast<double>(step - open_.first);
  if (step - open_.first >= kLongestLine) return false;
  // Where sums of floats would lose too much.
  if (sums[0] * 2 < open_.base[0] || open_.base[0] * 2 < sums[0]) return false;
  const double tolerance = kTolerance * sums[0];
  double low[AbsentWeights::kMostTerms], high[AbsentWeights::kMostTerms];
  for (int d = 0; d < weights_.terms(); ++d) {
    const double by = sums[d] - open_.base[d];
    low[d] = std::max(open_.low[d], (by - tolerance) / length);
    high[d] = std::min(open_.high[d], (by + tolerance) / length);
    if (low[d] > high[d]) return false;
  }
  std::copy_n(low, weights_.terms(), open_.low);
  std::copy_n(high, weights_.terms(), open_.high);
  open_.last = step;
  return true;
}

void AbsentHistory::WriteOpenLine(float* values) const {
  const int terms = weights_.terms();
  for (int d = 0; d < terms; ++d) {
    values[d] = static_cast<float>(open_.base[d]);
    values[terms + d] =
        open_.first == open_.last
            ? 0.0f
            : static_cast<float>((open_.low[d] + open_.high[d]) / 2);
  }
}

void AbsentHistory::FillView(AbsentView* view) const {
  const int64_t steps = weights_.steps();
  const int terms = weights_.terms();
  view->now_ = now_;
  view->steps_ = steps;
  view->terms_ = terms;
  view->lines_ = lines_;
  view->open_first_ = open_.first;
  if (open_.first >= 0) WriteOpenLine(view->open_);
  for (int64_t k = 1; k <= std::min(now_, steps); ++k) {
    const double* const sums = &sums_[(now_ - k) % steps * terms];
    for (int d = 0; d < terms; ++d) {
      view->recent_[(k - 1) * terms + d] = static_cast<float>(sums[d]);
    }
  }
}

void AbsentHistory::BeginAfter(int64_t steps) {
  auto next = std::make_shared<AbsentView>();
  const int64_t recent = weights_.steps();
  next->recent_.resize(std::min(steps, recent) * weights_.terms());
  const ExclusiveLock lock(mutex_);
  now_ = steps;
  std::fill(alphas_.begin(), alphas_.end(), 0.0);
  std::fill(grows_.begin(), grows_.end(), 1.0);
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::fill(grown_.begin(), grown_.end(), 1.0);
  blocks_.clear();
  lines_ = 0;
  open_ = OpenLine();
  // One line for all of the final sums.
  if (steps > recent) AddFinal(steps - 1 - recent, sums_.data());
  FillView(next.get());
  view_ = std::move(next);
}

std::string AbsentHistory::State() const {
  const ExclusiveLock lock(mutex_);
  const int64_t steps = weights_.steps();
  const int terms = weights_.terms();
  Writer writer;
  for (const int64_t each : {kStateVersion, steps, int64_t{terms}, now_, lines_,
                             open_.first, open_.last}) {
    writer.Put(each);
  }
  if (open_.first >= 0) {
    writer.Put(open_.base, terms);
    writer.Put(open_.low, terms);
    writer.Put(open_.high, terms);
  }
  for (int64_t i = now_ - std::min(now_, steps) + 1; i <= now_; ++i) {
    writer.Put(&alphas_[i % steps], 1);
    writer.Put(&grows_[i % steps], 1);
  }
  for (int64_t line = 0; line < lines_; line += AbsentLines::kLines) {
    const int64_t n = std::min(AbsentLines::kLines, lines_ - line);
    const AbsentLines& block = *blocks_[line / AbsentLines::kLines];
    writer.Put(block.firsts.get(), n);
    writer.Put(block.values.get(), n * 2 * terms);
  }
  return writer.Take();
}

int64_t AbsentHistory::ClockOf(const std::string& state) {
  // What comes first: see State.
  int64_t numbers[4];
  return Reader(state).Get(numbers, 4) ? numbers[3] : -1;
}

Status AbsentHistory::SetState(const std::string& state) {
  const int64_t steps = weights_.steps();
  const int terms = weights_.terms();
  Reader reader(state);
  int64_t version, their_steps, their_terms, now, lines;
  OpenLine open;
  for (int64_t* each : {&version, &their_steps, &their_terms, &now, &lines,
                        &open.first, &open.last}) {
    if (!reader.Get(each, 1)) return BadState("it ends too early");
  }
  if (version != kStateVersion) return BadState("it is of another version");
  if (their_steps != steps || their_terms != terms) {
    return BadState("it is that of other betas");
  }
  if (now < 0 || now > kLast) return BadState("its clock is out of range");
  const int64_t recent = std::min(now, steps);
  const int64_t line_bytes = sizeof(int32_t) + 2 * terms * sizeof(float);
  const bool has_open = now > steps;
  if (has_open != (open.first >= 0) ||
      (has_open && (open.last != now - 1 - steps || open.first > open.last))) {
    return BadState("its last steps are not those before its clock");
  }
  const int64_t fixed =
      (has_open ? 3 * terms : 0) * sizeof(double) + recent * 2 * sizeof(double);
  if (lines < 0 || lines > reader.rest() / line_bytes ||
      reader.rest() != fixed + lines * line_bytes) {
    return BadState("its size is not what it says");
  }
  if (has_open) {
    for (double* each : {open.base, open.low, open.high}) {
      reader.Get(each, terms);
      if (!AllFinite(each, terms)) return BadState("a sum is not finite");
    }
    for (int d = 0; d < terms; ++d) {
      // As WriteOpenLine makes it.
      const double slope =
          open.first == open.last ? 0 : (open.low[d] + open.high[d]) / 2;
      if (!IsFloat(open.base[d]) || !IsFloat(slope)) {
        return BadState("a sum is out of range");
      }
    }
  }
  std::vector<double> taken(2 * recent);
  reader.Get(taken.data(), 2 * recent);
  const double most_grow = 1 / (1 - most_decay_);
  for (int64_t i = 0; i < recent; ++i) {
    const double alpha = taken[2 * i], grow = taken[2 * i + 1];
    if (!(alpha >= 0 && alpha <= kLargestAlpha && grow >= 1 &&
          grow <= most_grow)) {
      return BadState("a step is out of range");
    }
  }
  std::vector<std::shared_ptr<AbsentLines>> blocks;
  int64_t after = -1;
  for (int64_t line = 0; line < lines; line += AbsentLines::kLines) {
    const int64_t n = std::min(AbsentLines::kLines, lines - line);
    blocks.push_back(std::make_shared<AbsentLines>(terms));
    AbsentLines& block = *blocks.back();
    reader.Get(block.firsts.get(), n);
    reader.Get(block.values.get(), n * 2 * terms);
    if (!AllFinite(block.values.get(), n * 2 * terms)) {
      return BadState("a sum is not finite");
    }
    for (int64_t i = 0; i < n; ++i) {
      if (block.firsts[i] <= after) return BadState("its steps have no order");
      after = block.firsts[i];
    }
  }
  if (lines > 0 && after >= open.first) {
    return BadState("its steps have no order");
  }
  auto next = std::make_shared<AbsentView>();
  next->recent_.resize(recent * terms);
  next->blocks_.assign(blocks.begin(), blocks.end());
  const ExclusiveLock lock(mutex_);
  // The sums of the last steps are made again, of which all are known.
  now_ = now - recent;
  open_ = OpenLine();
  for (int64_t i = 0; i < recent; ++i) {
    AddRecent(taken[2 * i], taken[2 * i + 1]);
  }
  open_ = open;
  lines_ = lines;
  blocks_ = std::move(blocks);
  FillView(next.get());
  view_ = std::move(next);
  return Status::Ok();
}

}  // namespace tf_ext
