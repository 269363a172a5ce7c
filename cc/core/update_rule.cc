#include "cc/core/update_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "cc/core/cpu.h"
#include "cc/core/update_args.h"

namespace tf_ext {
namespace {

// What a hyperparameter may be, as a float32.
enum class Range { kNotNegative, kPositive, kNotPositive, kBelowOne, kFlag };

struct Hyperparameter {
  const char* name;
  Range range;
};

struct RuleInfo {
  const char* name;
  std::vector<Hyperparameter> hyperparameters;
};

const RuleInfo& InfoOf(RuleKind kind) {
  static const Hyperparameter rate = {"learning_rate", Range::kNotNegative};
  static const Hyperparameter decay = {"weight_decay", Range::kNotNegative};
  static const Hyperparameter epsilon = {"epsilon", Range::kNotNegative};
  static const RuleInfo sgd = {"sgd", {rate, decay}};
  static const RuleInfo momentum = {"momentum",
                                    {rate,
                                     decay,
                                     {"momentum", Range::kBelowOne},
                                     {"nesterov", Range::kFlag}}};
  static const RuleInfo adagrad = {"adagrad", {rate, decay, epsilon}};
  static const RuleInfo row_wise_adagrad = {"row_wise_adagrad",
                                            {rate, decay, epsilon}};
  static const RuleInfo adam = {"adam",
                                {rate,
                                 decay,
                                 {"beta_1", Range::kBelowOne},
                                 {"beta_2", Range::kBelowOne},
                                 epsilon}};
  // The rule divides by its learning rate.
  static const RuleInfo ftrl = {
      "ftrl",
      {{"learning_rate", Range::kPositive},
       decay,
       {"learning_rate_power", Range::kNotPositive},
       {"l1_regularization_strength", Range::kNotNegative},
       {"l2_regularization_strength", Range::kNotNegative},
       {"l2_shrinkage_regularization_strength", Range::kNotNegative},
       {"beta", Range::kNotNegative}}};
  static const RuleInfo rmsprop = {"rmsprop",
                                   {rate,
                                    decay,
                                    {"rho", Range::kBelowOne},
                                    {"momentum", Range::kBelowOne},
                                    epsilon}};
  static const RuleInfo none = {"none", {}};
  switch (kind) {
    case RuleKind::kSgd:
      return sgd;
    case RuleKind::kMomentum:
      return momentum;
    case RuleKind::kAdagrad:
      return adagrad;
    case RuleKind::kRowWiseAdagrad:
      return row_wise_adagrad;
    case RuleKind::kAdam:
      return adam;
    case RuleKind::kFtrl:
      return ftrl;
    case RuleKind::kRmsprop:
      return rmsprop;
    case RuleKind::kNone:
      break;
  }
  return none;
}

bool Allows(Range range, double value) {
  const float as_float = static_cast<float>(value);
  if (!std::isfinite(as_float)) return false;
  switch (range) {
    case Range::kNotNegative:
      return value >= 0;
    case Range::kPositive:
      return as_float > 0;
    case Range::kNotPositive:
      return value <= 0;
    case Range::kBelowOne:
      return value >= 0 && value < 1;
    case Range::kFlag:
      break;
  }
  return value == 0 || value == 1;
}

const char* AllowedText(Range range) {
  switch (range) {
    case Range::kNotNegative:
      return "0 or more and finite in float32";
    case Range::kPositive:
      return "more than 0 and finite in float32, because the rule divides by "
             "it";
    case Range::kNotPositive:
      return "0 or less and finite in float32";
    case Range::kBelowOne:
      return "at least 0 and less than 1";
    case Range::kFlag:
      break;
  }
  return "0 or 1";
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  // The shortest form that reads back the same.
  for (int digits = 1; digits < 17; ++digits) {
    char shorter[32];
    std::snprintf(shorter, sizeof(shorter), "%.*g", digits, value);
    if (std::strtod(shorter, nullptr) == value) return shorter;
  }
  return text;
}

std::string NamesText(const RuleInfo& info) {
  std::string text;
  for (const Hyperparameter& hyperparameter : info.hyperparameters) {
    if (!text.empty()) text += ", ";
    text += hyperparameter.name;
  }
  return text;
}

const UpdateLoops& CurrentLoops() {
#ifdef __x86_64__
  switch (CurrentSimdLevel()) {
    case SimdLevel::kAvx512:
      return kAvx512UpdateLoops;
    case SimdLevel::kAvx2:
      return kAvx2UpdateLoops;
    case SimdLevel::kScalar:
      break;
  }
#endif
  return kScalarUpdateLoops;
}

UpdateArgs FieldsOf(const TableConfig& config, const RowLayout& layout) {
  const auto offset = [&layout](const char* name) -> int64_t {
    const Field* field = layout.Find(name);
    return field == nullptr ? -1 : field->offset;
  };
  UpdateArgs args = {};
  args.dim = config.dim;
  args.weights = RowLayout::kWeightsOffset;
  args.accumulator = offset("accumulator");
  args.linear = offset("linear");
  args.m = offset("m");
  args.v = offset("v");
  args.step = offset("step");
  args.momentum_field = offset("momentum");
  args.velocity = offset("velocity");
  args.average_gradient = offset("average_gradient");
  return args;
}

void SetPowers(double base, double (*by_digit)[256]) {
  for (int digit = 0; digit < 4; ++digit) {
    by_digit[digit][0] = 1;
    for (int i = 1; i < 256; ++i) {
      by_digit[digit][i] = by_digit[digit][i - 1] * base;
    }
    base *= by_digit[digit][255];
  }
}

// What the args of one push point at lives as long as they do.
struct ArgsAndPowers {
  UpdateArgs args;
  AdamPowers powers;
};

std::shared_ptr<const UpdateArgs> WithPowers(const UpdateArgs& args,
                                             double beta_1, double beta_2) {
  auto owner = std::make_shared<ArgsAndPowers>();
  SetPowers(beta_1, owner->powers.beta_1);
  SetPowers(beta_2, owner->powers.beta_2);
  owner->args = args;
  owner->args.powers = &owner->powers;
  return std::shared_ptr<const UpdateArgs>(owner, &owner->args);
}

}  // namespace

UpdateRule::UpdateRule(const TableConfig& config, const RowLayout& layout)
    : config_(config.rule),
      fields_(new UpdateArgs(FieldsOf(config, layout))),
      loops_(CurrentLoops()) {}

UpdateRule::~UpdateRule() = default;

Status UpdateRule::Check(const double* hyperparameters, int64_t count,
                         int64_t step) const {
  if (config_.kind == RuleKind::kNone) {
    return Status::InvalidArgument(
        "the table has optimizer=none, as in an exported model: it holds "
        "weights to serve and cannot be trained. Train the model that was "
        "exported, and export it again");
  }
  const RuleInfo& info = InfoOf(config_.kind);
  const std::string rule = info.name;
  const int64_t expected = static_cast<int64_t>(info.hyperparameters.size());
  if (count != expected) {
    return Status::InvalidArgument(
        "hyperparameters of " + rule + " must be " + std::to_string(expected) +
        " numbers (" + NamesText(info) + "), found " + std::to_string(count));
  }
  for (int64_t i = 0; i < count; ++i) {
    const Hyperparameter& hyperparameter = info.hyperparameters[i];
    if (Allows(hyperparameter.range, hyperparameters[i])) continue;
    return Status::InvalidArgument(std::string(hyperparameter.name) + " of " +
                                   rule + " must be " +
                                   AllowedText(hyperparameter.range) +
                                   ", found " + NumberText(hyperparameters[i]));
  }
  if (config_.kind == RuleKind::kRmsprop && !config_.momentum_field &&
      hyperparameters[3] > 0) {
    return Status::InvalidArgument(
        "momentum of rmsprop must be 0 in a table whose rows have no momentum "
        "field, found " +
        NumberText(hyperparameters[3]) +
        "; create the table with momentum_field=1 to use momentum");
  }
  if (step < 0) {
    return Status::InvalidArgument("step must be 0 or more, found " +
                                   std::to_string(step));
  }
  return Status::Ok();
}

UpdateRule::Push UpdateRule::Prepare(const double* hyperparameters,
                                     int64_t /*count*/, int64_t step) const {
  const double* const h = hyperparameters;
  UpdateArgs args = *fields_;
  args.learning_rate = static_cast<float>(h[0]);
  args.weight_decay = static_cast<float>(h[1]);
  Push push;
  switch (config_.kind) {
    case RuleKind::kSgd:
      push.update_ = loops_.sgd;
      break;
    case RuleKind::kMomentum:
      args.momentum = static_cast<float>(h[2]);
      push.update_ = h[3] != 0 ? loops_.nesterov : loops_.momentum;
      break;
    case RuleKind::kAdagrad:
      args.epsilon = static_cast<float>(h[2]);
      push.update_ = loops_.adagrad;
      break;
    case RuleKind::kRowWiseAdagrad:
      args.epsilon = static_cast<float>(h[2]);
      push.update_ = loops_.row_wise_adagrad;
      break;
    case RuleKind::kAdam: {
      args.one_minus_beta_1 = static_cast<float>(1 - h[2]);
      args.one_minus_beta_2 = static_cast<float>(1 - h[3]);
      args.epsilon = static_cast<float>(h[4]);
      push.update_ = loops_.adam;
      if (config_.bias_correction_by_row) {
        args.exact_learning_rate = h[0];
        push.args_ = WithPowers(args, h[2], h[3]);
        return push;
      }
      const double t = static_cast<double>(std::max<int64_t>(step, 1));
      args.alpha = static_cast<float>(h[0] * std::sqrt(1 - std::pow(h[3], t)) /
                                      (1 - std::pow(h[2], t)));
      break;
    }
    case RuleKind::kFtrl: {
      const float l2 = static_cast<float>(h[4]);
      const float beta = static_cast<float>(h[6]);
      args.minus_learning_rate_power = static_cast<float>(-h[2]);
      args.l1 = static_cast<float>(h[3]);
      args.two_l2 = 2.0f * (l2 + beta / (2.0f * args.learning_rate));
      args.two_l2_shrinkage = static_cast<float>(2 * h[5]);
      push.update_ = h[2] == -0.5 ? loops_.ftrl : loops_.ftrl_power;
      break;
    }
    case RuleKind::kRmsprop:
      args.rho = static_cast<float>(h[2]);
      args.one_minus_rho = static_cast<float>(1 - h[2]);
      args.momentum = static_cast<float>(h[3]);
      args.epsilon = static_cast<float>(h[4]);
      push.update_ = loops_.rmsprop[config_.centered][config_.momentum_field];
      break;
    case RuleKind::kNone:  // Check has refused it.
      break;
  }
  push.args_ = std::make_shared<const UpdateArgs>(args);
  return push;
}

void UpdateRule::Push::Update(uint8_t* const* rows, const float* gradients,
                              const int64_t* gradient_index,
                              int64_t count) const {
  update_(*args_, rows, gradients, gradient_index, count);
}

const std::vector<const char*>& UpdateRule::HyperparameterNames(RuleKind kind) {
  static const std::vector<std::vector<const char*>> names = [] {
    std::vector<std::vector<const char*>> all;
    for (RuleKind each :
         {RuleKind::kSgd, RuleKind::kMomentum, RuleKind::kAdagrad,
          RuleKind::kRowWiseAdagrad, RuleKind::kAdam, RuleKind::kFtrl,
          RuleKind::kRmsprop, RuleKind::kNone}) {
      all.emplace_back();
      for (const Hyperparameter& hyperparameter :
           InfoOf(each).hyperparameters) {
        all.back().push_back(hyperparameter.name);
      }
    }
    return all;
  }();
  return names[static_cast<size_t>(kind)];
}

}  // namespace tf_ext
