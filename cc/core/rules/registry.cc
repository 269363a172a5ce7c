// SPDX-License-Identifier: Apache-2.0
// The list of update rules. RULE(X) is the function X of the rule's own file,
// in the order in which errors list the names; the first is the default.
#include "cc/core/rules/rule_spec.h"

#define TF_EXT_RULES(RULE) \
  RULE(SgdRule)            \
  RULE(MomentumRule)       \
  RULE(AdagradRule)        \
  RULE(RowWiseAdagradRule) \
  RULE(AdamRule)           \
  RULE(DenseAdamRule)      \
  RULE(FtrlRule)           \
  RULE(RmspropRule)        \
  RULE(LionRule)           \
  RULE(NoneRule)

namespace tf_ext {

#define TF_EXT_DECLARE(Rule) const RuleSpec& Rule();
TF_EXT_RULES(TF_EXT_DECLARE)
#undef TF_EXT_DECLARE

const std::vector<const RuleSpec*>& AllRules() {
#define TF_EXT_ADDRESS(Rule) &Rule(),
  static const std::vector<const RuleSpec*> rules = {
      TF_EXT_RULES(TF_EXT_ADDRESS)};
#undef TF_EXT_ADDRESS
  return rules;
}

const RuleSpec* FindRule(const std::string& name) {
  for (const RuleSpec* rule : AllRules()) {
    if (name == rule->name) return rule;
  }
  return nullptr;
}

std::string RuleNames() {
  std::string names;
  for (const RuleSpec* rule : AllRules()) {
    if (!names.empty()) names += ", ";
    names += rule->name;
  }
  return names;
}

}  // namespace tf_ext
