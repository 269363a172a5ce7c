// What the update loops need, as plain data: this file is compiled once for
// each instruction set and must not bring in inline functions, of which the
// linker keeps one copy for all.
#ifndef TF_EXT_CC_CORE_UPDATE_ARGS_H_
#define TF_EXT_CC_CORE_UPDATE_ARGS_H_

#include <stdint.h>

namespace tf_ext {

// beta_1^t and beta_2^t for every t below 2^32, by the digits of t in base
// 256: beta^t is the product of by_digit[i][digit i of t].
struct AdamPowers {
  double beta_1[4][256];
  double beta_2[4][256];
};

// One push, made ready. A rule reads only the members it has a use for.
struct UpdateArgs {
  int64_t dim;

  // Fields of a row, in bytes from its start; -1: the row has none.
  int64_t weights;
  int64_t accumulator;
  int64_t linear;
  int64_t m;
  int64_t v;
  int64_t step;
  int64_t momentum_field;
  int64_t velocity;
  int64_t average_gradient;

  float learning_rate;
  float weight_decay;
  float epsilon;
  float momentum;
  float rho;
  float one_minus_rho;
  float one_minus_beta_1;
  float one_minus_beta_2;
  float l1;
  float two_l2;  // beta is in it
  float two_l2_shrinkage;
  float minus_learning_rate_power;

  // adam: alpha = learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) is the
  // same for all rows, or comes from each row's own t and `powers`.
  float alpha;
  double exact_learning_rate;
  const AdamPowers* powers;
};

// Updates rows[i] with gradients + gradient_index[i] * dim, i in [0, count).
using UpdateFn = void (*)(const UpdateArgs& args, uint8_t* const* rows,
                          const float* gradients, const int64_t* gradient_index,
                          int64_t count);

struct UpdateLoops {
  UpdateFn sgd;
  UpdateFn momentum;
  UpdateFn nesterov;
  UpdateFn adagrad;
  UpdateFn row_wise_adagrad;
  UpdateFn adam;
  UpdateFn ftrl;           // learning_rate_power is -0.5
  UpdateFn ftrl_power;     // any learning_rate_power
  UpdateFn rmsprop[2][2];  // [centered][momentum_field]
};

extern const UpdateLoops kScalarUpdateLoops;
#ifdef __x86_64__
extern const UpdateLoops kAvx2UpdateLoops;
extern const UpdateLoops kAvx512UpdateLoops;
#endif

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_UPDATE_ARGS_H_
