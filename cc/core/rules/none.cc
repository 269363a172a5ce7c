// SPDX-License-Identifier: Apache-2.0
// No update rule: rows hold weights to serve, and pushes are refused.
#include "cc/core/rules/rule_spec.h"

namespace tf_ext {

const RuleSpec& NoneRule() {
  static const RuleSpec spec = {
      "none",
      {},
      {},
      nullptr,
      nullptr,
      nullptr,
      "the table has optimizer=none, as in an exported model or inside of "
      "tf_ext.serving.weights_only: it holds weights to serve and cannot be "
      "trained. Train the model that was exported or saved"};
  return spec;
}

}  // namespace tf_ext
