// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/rules/rule_spec.h"
#include "cc/core/table/config.h"
#include "cc/python/check.h"
#include "cc/python/modules.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

py::dict RangeDict(const Range& range) {
  py::dict dict;
  dict["low"] = range.low;
  dict["low_allowed"] = range.low_allowed;
  dict["high"] = range.high;
  dict["high_allowed"] = range.high_allowed;
  dict["flag"] = range.flag;
  return dict;
}

py::dict HyperparameterDict(const Hyperparameter& hyperparameter) {
  py::dict dict;
  dict["name"] = hyperparameter.name;
  dict["range"] = RangeDict(hyperparameter.range);
  dict["default"] = std::isnan(hyperparameter.start)
                        ? py::object(py::none())
                        : py::float_(hyperparameter.start);
  return dict;
}

py::dict IdentityDict(const IdentityKey& key) {
  py::dict dict;
  dict["name"] = key.name;
  if (key.is_flag()) {
    dict["texts"] = py::make_tuple(key.off, key.on);
    dict["default"] = key.start != 0 ? key.on : key.off;
  } else {
    dict["texts"] = py::none();
    dict["default"] = key.start;
    dict["range"] = RangeDict(key.range != nullptr ? *key.range : kNotNegative);
  }
  return dict;
}

py::dict RuleDict(const std::string& name) {
  const RuleSpec* const spec = FindRule(name);
  if (spec == nullptr) {
    throw py::value_error("There is no update rule \"" + name +
                          "\"; there are " + RuleNames() + ".");
  }
  py::list hyperparameters;
  for (const Hyperparameter& each : spec->hyperparameters) {
    hyperparameters.append(HyperparameterDict(each));
  }
  py::list identity;
  for (const IdentityKey& each : spec->identity) {
    identity.append(IdentityDict(each));
  }
  py::dict dict;
  dict["name"] = spec->name;
  dict["hyperparameters"] = hyperparameters;
  dict["identity"] = identity;
  return dict;
}

py::list RuleSlots(const std::string& config, int64_t dim) {
  RuleConfig rule;
  Check(ParseRuleConfig(config, &rule));
  py::list slots;
  for (const Slot& slot : rule.Slots(dim)) {
    slots.append(
        py::make_tuple(slot.name, FieldTypeName(slot.type), slot.count));
  }
  return slots;
}

py::dict FieldTypes() {
  py::dict types;
  for (const FieldTypeInfo& info : kFieldTypes) {
    py::dict dict;
    dict["bytes"] = info.bytes;
    dict["of_weights"] = info.of_weights;
    dict["of_slots"] = info.of_slots;
    types[info.name] = dict;
  }
  return types;
}

py::list AllRuleNames() {
  py::list names;
  for (const RuleSpec* spec : AllRules()) names.append(spec->name);
  return names;
}

}  // namespace

void DefineRules(py::module_* m) {
  m->def("field_types", &FieldTypes);
  m->def("update_rules", &AllRuleNames);
  m->def("update_rule", &RuleDict, py::arg("name"));
  m->def("update_rule_slots", &RuleSlots, py::arg("config"), py::arg("dim"));
}

}  // namespace tf_ext
