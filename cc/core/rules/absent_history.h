// SPDX-License-Identifier: Apache-2.0
// What dense Adam does to rows in the steps in which they have no gradient.
//
// After k such steps, the moments of a row are m b1^k and v b2^k, and the last
// of these steps, with the step size alpha, has moved its weights by
//
//   alpha m b1^k / (sqrt(v) b2^(k/2) + epsilon)
//     = m / (sqrt(v) + e) * alpha r^k / (1 + q c_k)
//
// with r = b1 / sqrt(b2), e = epsilon B, q = e / (sqrt(v) + e), which is from 0
// to 1, and c_k = b2^(-k/2) / B - 1. B is any number, and such that all c_k are
// small. So r^k / (1 + q c_k) is nearly a polynomial of few terms in q, and all
// that moves a row in the steps after step s is
//
//   m / (sqrt(v) + e) * (F_s0 + F_s1 q + F_s2 q^2 + ...)
//
// where F_s, sums over these steps, are the same for all rows of which s was
// the last push. r is less than 1, so they are final after `steps()` steps,
// some 170. Those of later s are computed in each step. Final ones are stored
// as lines: stretches of s in which each is a linear function of s to within
// 2^-23, so that a schedule takes a few thousand of them, however long it is,
// and a constant rate one.
//
// If the table shrinks its rows, too (shrinkage.h), step i moves the weights
// before those of step s by 1 / (product of 1 - rate * l2 from s + 1 to i) as
// much: rows are first moved, and then shrunk at once.
//
// The clock counts pushes, as shrinkage.h's does, and rows hold when they were
// last pushed. All sums are doubles in a fixed order: each machine, and each
// shard of a table that takes all steps, has the same bits.
#ifndef TF_EXT_CC_CORE_RULES_ABSENT_HISTORY_H_
#define TF_EXT_CC_CORE_RULES_ABSENT_HISTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/rules/rule_spec.h"
#include "cc/core/support/mutex.h"
#include "cc/core/support/status.h"
#include "cc/core/support/thread_annotations.h"

namespace tf_ext {

// Of one step, by how many steps before it a row was pushed: the terms of the
// polynomials.
class AbsentWeights {
 public:
  static constexpr int kMostTerms = 8;
  static constexpr int64_t kMostSteps = 4096;

  // An error unless there are such polynomials.
  static Status Check(const AdamMoments& moments);
  // `moments` that have passed Check.
  explicit AbsentWeights(const AdamMoments& moments);

  int64_t steps() const { return steps_; }
  int terms() const { return terms_; }
  // B.
  double base() const { return base_; }
  // k: from 1 to steps().
  const double* of(int64_t k) const { return &weights_[(k - 1) * terms_]; }

 private:
  // Whether polynomials of so many terms are exact enough.
  bool Fit(const std::vector<double>& powers,
           const std::vector<double>& changes, int terms);

  int64_t steps_ = 0;
  int terms_ = 0;
  double base_ = 1;
  std::vector<double> weights_;
};

// Lines of final sums, in the order of their first steps; see above.
struct AbsentLines {
  static constexpr int64_t kLines = 4096;

  explicit AbsentLines(int terms)
      : firsts(new int32_t[kLines]), values(new float[kLines * 2 * terms]) {}

  std::unique_ptr<int32_t[]> firsts;
  // The sums of the first step, and what each further step adds.
  std::unique_ptr<float[]> values;
};

// All sums after a step. Does not change.
class AbsentView {
 public:
  // The step, 0 before the first.
  int64_t now() const { return now_; }
  // Writes the terms of what moved rows that were last pushed in `step`.
  void Get(int64_t step, float* sums) const;

 private:
  friend class AbsentHistory;

  const float* FindLine(int64_t step, int64_t* first) const;

  int64_t now_ = 0;
  int64_t steps_ = 0;
  int terms_ = 0;
  std::vector<float> recent_;  // by how long ago the step was
  // Blocks of kLines lines, of which `lines_` are there.
  std::vector<std::shared_ptr<const AbsentLines>> blocks_;
  int64_t lines_ = 0;
  // The line that is not complete; -1: none.
  int64_t open_first_ = -1;
  float open_[2 * AbsentWeights::kMostTerms] = {};
};

class AbsentHistory {
 public:
  // Where the clock ends. Rows are not moved any more then.
  static constexpr int64_t kLast = INT32_MAX - 1;

  explicit AbsentHistory(const AdamMoments& moments);

  const AbsentWeights& weights() const { return weights_; }
  // learning_rate * l2 must be less: 2^-40 remains in steps() steps.
  double most_decay() const { return most_decay_; }

  struct Step {
    // What the step finds.
    std::shared_ptr<const AbsentView> before;
    // The step that it is.
    int64_t now;
    // Of its bias correction.
    int64_t step;
  };
  // Advances the clock by a push, which was sent with `step`. May throw
  // std::bad_alloc, and changes nothing then.
  Step Advance(double learning_rate, int64_t step, double l2);

  std::shared_ptr<const AbsentView> view() const {
    const ExclusiveLock lock(mutex_);
    return view_;
  }

  // Makes it that of a table that has made `steps`, of at most kLast, none of
  // which has moved a row. May throw std::bad_alloc, and changes nothing then.
  void BeginAfter(int64_t steps);

  // All of it, as bytes. May throw std::bad_alloc, like the next.
  std::string State() const;
  // The clock that a state has; -1 if it is none.
  static int64_t ClockOf(const std::string& state);
  // Continues as the history that had the state did.
  Status SetState(const std::string& state);

 private:
  // The points of a line that may get more.
  struct OpenLine {
    int64_t first = -1;
    int64_t last = -1;
    double base[AbsentWeights::kMostTerms] = {};
    double low[AbsentWeights::kMostTerms] = {};  // of slopes
    double high[AbsentWeights::kMostTerms] = {};
  };

  void AddStep(double alpha, double grow) TF_EXT_REQUIRES(mutex_);
  // Without what becomes final.
  void AddRecent(double alpha, double grow) TF_EXT_REQUIRES(mutex_);
  void AddFinal(int64_t step, const double* sums) TF_EXT_REQUIRES(mutex_);
  bool Extend(int64_t step, const double* sums) TF_EXT_REQUIRES(mutex_);
  void WriteOpenLine(float* values) const TF_EXT_REQUIRES(mutex_);
  void FillView(AbsentView* view) const TF_EXT_REQUIRES(mutex_);

  const AdamMoments moments_;
  const AbsentWeights weights_;
  const double most_decay_;

  mutable Mutex mutex_;
  int64_t now_ TF_EXT_GUARDED_BY(mutex_) = 0;
  // Of the last steps, by their number modulo steps().
  std::vector<double> alphas_ TF_EXT_GUARDED_BY(mutex_);
  std::vector<double> grows_ TF_EXT_GUARDED_BY(mutex_);
  std::vector<double> sums_ TF_EXT_GUARDED_BY(mutex_);
  std::vector<double> grown_ TF_EXT_GUARDED_BY(mutex_);
  OpenLine open_ TF_EXT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<AbsentLines>> blocks_ TF_EXT_GUARDED_BY(mutex_);
  int64_t lines_ TF_EXT_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const AbsentView> view_ TF_EXT_GUARDED_BY(mutex_);
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_ABSENT_HISTORY_H_
