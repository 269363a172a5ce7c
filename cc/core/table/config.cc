// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/config.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "cc/core/rules/shrinkage.h"
#include "cc/core/support/message.h"
#include "cc/core/table/config_lines.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {
namespace {

// The text keys of a and b; nullptr: the initializer has no such parameter.
struct InitializerText {
  InitializerKind kind;
  const char* name;
  const char* a;
  const char* b;
};

constexpr InitializerText kInitializers[] = {
    {InitializerKind::kZeros, "zeros", nullptr, nullptr},
    {InitializerKind::kConstant, "constant", "initializer.value", nullptr},
    {InitializerKind::kUniform, "uniform", "initializer.minval",
     "initializer.maxval"},
    {InitializerKind::kNormal, "normal", "initializer.mean",
     "initializer.stddev"},
    {InitializerKind::kTruncatedNormal, "truncated_normal", "initializer.mean",
     "initializer.stddev"},
};

const InitializerText& TextOf(InitializerKind kind) {
  for (const InitializerText& entry : kInitializers) {
    if (entry.kind == kind) return entry;
  }
  return kInitializers[0];
}

constexpr char kLastSeenKey[] = "last_seen";
constexpr char kStatisticsKey[] = "statistics";

struct LastSeenText {
  LastSeen unit;
  const char* name;
};

constexpr LastSeenText kLastSeenUnits[] = {{LastSeen::kStep, "step"},
                                           {LastSeen::kSecond, "second"}};

constexpr char kSlotDtypeKey[] = "slot_dtype";

// Of FieldTypeInfo: whether a type may be that of the key.
using Allows = bool FieldTypeInfo::*;

std::string DtypesAllowed(Allows allows) {
  std::vector<FieldTypeInfo> allowed;
  for (const FieldTypeInfo& info : kFieldTypes) {
    if (info.*allows) allowed.push_back(info);
  }
  return "one of " + AllowedNames(allowed);
}

// Normal random numbers of 24 bits are below this many standard deviations.
constexpr float kMostDeviations = 7;
constexpr char kFloatAllowed[] = "a finite float32 number";
constexpr char kShrinkageAllowed[] = "0 or more and finite";
constexpr char kSeedAllowed[] = "an integer from 0 to 18446744073709551615";

Status ParseInitializer(Lines* lines, InitializerConfig* initializer) {
  std::string name;
  TF_EXT_RETURN_IF_ERROR(lines->TakeRequired("initializer", &name));
  const InitializerText* found = nullptr;
  for (const InitializerText& entry : kInitializers) {
    if (name == entry.name) found = &entry;
  }
  if (found == nullptr) {
    return BadValue("initializer", name,
                    "one of " + AllowedNames(kInitializers));
  }
  initializer->kind = found->kind;
  if (found->a != nullptr) {
    TF_EXT_RETURN_IF_ERROR(
        lines->TakeRequiredNumber(found->a, kFloatAllowed, &initializer->a));
  }
  if (found->b != nullptr) {
    return lines->TakeRequiredNumber(found->b, kFloatAllowed, &initializer->b);
  }
  return Status::Ok();
}

std::string TextKey(const IdentityKey& key) {
  return std::string("optimizer.") + key.name;
}

Status ParseRule(Lines* lines, RuleConfig* rule) {
  std::string name;
  TF_EXT_RETURN_IF_ERROR(lines->TakeRequired("optimizer", &name));
  const RuleSpec* const spec = FindRule(name);
  if (spec == nullptr) {
    return BadValue("optimizer", name, "one of " + RuleNames());
  }
  *rule = RuleConfig(*spec);
  for (const IdentityKey& key : spec->identity) {
    if (key.is_flag()) {
      bool on = key.start != 0;
      TF_EXT_RETURN_IF_ERROR(
          lines->TakeFlag(TextKey(key), key.off, key.on, &on));
      rule->Set(key.name, on);
    } else if (key.range != nullptr) {
      double value = key.start;
      TF_EXT_RETURN_IF_ERROR(
          lines->TakeNumber(TextKey(key), key.range->allowed, &value));
      rule->Set(key.name, value);
    } else {
      float value = static_cast<float>(key.start);
      TF_EXT_RETURN_IF_ERROR(
          lines->TakeNumber(TextKey(key), kFloatAllowed, &value));
      rule->Set(key.name, value);
    }
  }
  return Status::Ok();
}

Status ParseDtype(Lines* lines, const char* key, Allows allows,
                  FieldType* dtype) {
  std::string value;
  if (!lines->Take(key, &value)) return Status::Ok();
  for (const FieldTypeInfo& info : kFieldTypes) {
    if (value != info.name || !(info.*allows)) continue;
    *dtype = info.type;
    return Status::Ok();
  }
  return BadValue(key, value, DtypesAllowed(allows));
}

Status CheckDtype(const char* key, Allows allows, FieldType dtype) {
  if (InfoOf(dtype).*allows) return Status::Ok();
  return BadValue(key, FieldTypeName(dtype), DtypesAllowed(allows));
}

Status ParseLastSeen(Lines* lines, LastSeen* last_seen) {
  std::string value;
  if (!lines->Take(kLastSeenKey, &value)) return Status::Ok();
  for (const LastSeenText& entry : kLastSeenUnits) {
    if (value != entry.name) continue;
    *last_seen = entry.unit;
    return Status::Ok();
  }
  return BadValue(kLastSeenKey, value,
                  "one of " + AllowedNames(kLastSeenUnits) +
                      "; leave it out if rows do not hold it");
}

Status ParseStatistics(Lines* lines, int* statistics) {
  std::string value;
  if (!lines->Take(kStatisticsKey, &value)) return Status::Ok();
  for (int count = 1; count <= kMostStatistics; ++count) {
    if (value != StatisticsToText(count)) continue;
    *statistics = count;
    return Status::Ok();
  }
  return BadValue(kStatisticsKey, value,
                  "\"show\" or \"show,click\"; leave it out if rows do not "
                  "hold them");
}

Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > static_cast<size_t>(kMaxNameBytes)) {
    return BadValue(
        "name", name,
        "of 1 to 200 bytes, found " + NumberToText(name.size()) + " bytes");
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const unsigned char byte = static_cast<unsigned char>(name[i]);
    if (byte >= 0x20 && byte != 0x7f) continue;
    return Invalid("table config: name has the control character ",
                   NumberToText(static_cast<int>(byte)), " at byte ",
                   NumberToText(i), "; it must be free of control characters.");
  }
  return Status::Ok();
}

Status CheckInitializer(const InitializerConfig& initializer, FieldType dtype) {
  const InitializerText& text = TextOf(initializer.kind);
  const float largest = InfoOf(dtype).largest;
  const std::string allowed = "from -" + NumberToText(largest) + " to " +
                              NumberToText(largest) + ", as dtype is " +
                              FieldTypeName(dtype);
  const auto fits = [largest](float value) {
    return !std::isfinite(value) || std::abs(value) <= largest;
  };
  if (text.a != nullptr && !fits(initializer.a)) {
    return BadValue(text.a, NumberToText(initializer.a), allowed);
  }
  if (text.b != nullptr && !fits(initializer.b)) {
    return BadValue(text.b, NumberToText(initializer.b), allowed);
  }
  if (text.a != nullptr && !std::isfinite(initializer.a)) {
    return BadValue(text.a, NumberToText(initializer.a), kFloatAllowed);
  }
  if (text.b != nullptr && !std::isfinite(initializer.b)) {
    return BadValue(text.b, NumberToText(initializer.b), kFloatAllowed);
  }
  switch (initializer.kind) {
    case InitializerKind::kUniform:
      // The width has to be a float too: it scales the random numbers.
      if (initializer.b < initializer.a ||
          !std::isfinite(initializer.b - initializer.a)) {
        return BadValue(
            text.b, NumberToText(initializer.b),
            "at least initializer.minval=" + NumberToText(initializer.a) +
                ", and the width of the range a finite float32");
      }
      return Status::Ok();
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      if (initializer.b < 0) {
        return BadValue(text.b, NumberToText(initializer.b), "at least 0");
      }
      if (!std::isfinite(std::fabs(initializer.a) +
                         kMostDeviations * initializer.b)) {
        return BadValue(text.b, NumberToText(initializer.b),
                        "so small that all weights are finite, with "
                        "initializer.mean=" +
                            NumberToText(initializer.a));
      }
      return Status::Ok();
    case InitializerKind::kZeros:
    case InitializerKind::kConstant:
      return Status::Ok();
  }
  return Status::Ok();
}

Status CheckRule(const RuleConfig& rule) {
  for (const IdentityKey& key : rule.spec().identity) {
    if (key.is_flag()) continue;
    if (key.range != nullptr) {
      const double value = rule.Number(key.name);
      if (key.range->Holds(value)) continue;
      return BadValue(TextKey(key), NumberToText(value), key.range->allowed);
    }
    const float value = rule.Get(key.name);
    if (std::isfinite(value) && value >= 0) continue;
    return BadValue(TextKey(key), NumberToText(value), "finite and at least 0");
  }
  if (rule.spec().check_config == nullptr) return Status::Ok();
  return rule.spec().check_config(rule);
}

std::string FieldsToText(const TableConfig& config) {
  const RowLayout layout(config);
  std::string text;
  for (const Field& field : layout.fields()) {
    if (!text.empty()) text += ", ";
    text += field.name + "[" + NumberToText(field.count) + "] ";
    text += FieldTypeName(field.type);
  }
  return text;
}

std::string LastSeenToText(const TableConfig& config) {
  for (const LastSeenText& entry : kLastSeenUnits) {
    if (config.last_seen == entry.unit) return entry.name;
  }
  return "none";
}

std::string InitializerToText(const InitializerConfig& initializer) {
  const InitializerText& text = TextOf(initializer.kind);
  std::string result = text.name;
  if (text.a != nullptr) {
    result += std::string(" ") + text.a + "=" + NumberToText(initializer.a);
  }
  if (text.b != nullptr) {
    result += std::string(" ") + text.b + "=" + NumberToText(initializer.b);
  }
  return result;
}

}  // namespace

std::string StatisticsToText(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ",";
    text += kStatisticsFields[i];
  }
  return text;
}

Status CheckTableConfig(const TableConfig& config) {
  TF_EXT_RETURN_IF_ERROR(CheckName(config.name));
  if (config.dim < 1 || config.dim > kMaxDim) {
    return BadValue("dim", NumberToText(config.dim), "from 1 to 65536");
  }
  if (config.hash_version != 1) {
    return BadValue("hash_version", NumberToText(config.hash_version),
                    "1, the only version this build knows");
  }
  if (config.statistics < 0 || config.statistics > kMostStatistics) {
    return BadValue(kStatisticsKey, NumberToText(config.statistics),
                    "from 0 to 2 fields");
  }
  TF_EXT_RETURN_IF_ERROR(
      CheckDtype("dtype", &FieldTypeInfo::of_weights, config.dtype));
  TF_EXT_RETURN_IF_ERROR(
      CheckDtype(kSlotDtypeKey, &FieldTypeInfo::of_slots, config.slot_dtype));
  TF_EXT_RETURN_IF_ERROR(CheckInitializer(config.initializer, config.dtype));
  for (const auto& [key, value] :
       {std::pair("l2", config.l2), {"l1", config.l1}}) {
    if (std::isfinite(value) && value >= 0) continue;
    return BadValue(key, NumberToText(value), kShrinkageAllowed);
  }
  if (config.l2 > 0 && config.l1 > Shrinkage::kMostL1OfL2 * config.l2) {
    return BadValue("l2", NumberToText(config.l2),
                    "0, or at least l1 / 10000: less is not precise beside l1");
  }
  if (config.l1 > 0 && config.moves_absent_rows()) {
    return BadValue("l1", NumberToText(config.l1),
                    "0, as the optimizer moves absent rows; l2 may be more");
  }
  if (config.admission != nullptr) {
    TF_EXT_RETURN_IF_ERROR(config.admission->Check());
  }
  TF_EXT_RETURN_IF_ERROR(config.unknown.Check(config.dim));
  return CheckRule(config.rule);
}

Status ParseTableConfig(const std::string& text, TableConfig* config) {
  TableConfig parsed;
  Lines lines;
  TF_EXT_RETURN_IF_ERROR(lines.Read(text));
  TF_EXT_RETURN_IF_ERROR(lines.TakeRequired("name", &parsed.name));
  TF_EXT_RETURN_IF_ERROR(
      lines.TakeRequiredNumber("dim", "from 1 to 65536", &parsed.dim));
  TF_EXT_RETURN_IF_ERROR(
      ParseDtype(&lines, "dtype", &FieldTypeInfo::of_weights, &parsed.dtype));
  TF_EXT_RETURN_IF_ERROR(ParseDtype(
      &lines, kSlotDtypeKey, &FieldTypeInfo::of_slots, &parsed.slot_dtype));
  TF_EXT_RETURN_IF_ERROR(lines.TakeNumber("seed", kSeedAllowed, &parsed.seed));
  TF_EXT_RETURN_IF_ERROR(
      lines.TakeNumber("hash_version", "1, the only version this build knows",
                       &parsed.hash_version));
  TF_EXT_RETURN_IF_ERROR(ParseInitializer(&lines, &parsed.initializer));
  TF_EXT_RETURN_IF_ERROR(ParseRule(&lines, &parsed.rule));
  TF_EXT_RETURN_IF_ERROR(ParseLastSeen(&lines, &parsed.last_seen));
  TF_EXT_RETURN_IF_ERROR(ParseStatistics(&lines, &parsed.statistics));
  TF_EXT_RETURN_IF_ERROR(lines.TakeNumber("l2", kShrinkageAllowed, &parsed.l2));
  TF_EXT_RETURN_IF_ERROR(lines.TakeNumber("l1", kShrinkageAllowed, &parsed.l1));
  TF_EXT_RETURN_IF_ERROR(ReadAdmission(&lines, &parsed.admission));
  TF_EXT_RETURN_IF_ERROR(parsed.unknown.Read(&lines));
  TF_EXT_RETURN_IF_ERROR(lines.CheckNothingLeft());
  Status status = CheckTableConfig(parsed);
  if (status.ok()) *config = std::move(parsed);
  return status;
}

Status ParseRuleConfig(const std::string& text, RuleConfig* rule) {
  Lines lines;
  RuleConfig parsed;
  Status status = lines.Read(text);
  if (status.ok()) status = ParseRule(&lines, &parsed);
  if (status.ok()) status = lines.CheckNothingLeft();
  if (status.ok()) status = CheckRule(parsed);
  if (status.ok()) *rule = std::move(parsed);
  return status;
}

std::string TableConfigToText(const TableConfig& config) {
  std::map<std::string, std::string> lines;  // sorted by key
  lines["dim"] = NumberToText(config.dim);
  lines["dtype"] = FieldTypeName(config.dtype);
  if (config.slot_dtype != FieldType::kFloat32) {
    lines[kSlotDtypeKey] = FieldTypeName(config.slot_dtype);
  }
  lines["hash_version"] = NumberToText(config.hash_version);
  lines["name"] = config.name;
  lines["seed"] = NumberToText(config.seed);
  const InitializerText& text = TextOf(config.initializer.kind);
  lines["initializer"] = text.name;
  if (text.a != nullptr) lines[text.a] = NumberToText(config.initializer.a);
  if (text.b != nullptr) lines[text.b] = NumberToText(config.initializer.b);
  if (config.last_seen != LastSeen::kNone) {
    lines[kLastSeenKey] = LastSeenToText(config);
  }
  if (config.statistics > 0) {
    lines[kStatisticsKey] = StatisticsToText(config.statistics);
  }
  if (config.admission != nullptr) {
    lines["admission"] = config.admission->name();
    config.admission->Write(&lines);
  }
  config.unknown.Write(&lines);
  if (config.l2 > 0) lines["l2"] = NumberToText(config.l2);
  if (config.l1 > 0) lines["l1"] = NumberToText(config.l1);
  const RuleConfig& rule = config.rule;
  lines["optimizer"] = rule.spec().name;
  for (const IdentityKey& key : rule.spec().identity) {
    lines[TextKey(key)] =
        key.is_flag()          ? (rule.Get(key.name) != 0 ? key.on : key.off)
        : key.range != nullptr ? NumberToText(rule.Number(key.name))
                               : NumberToText(rule.Get(key.name));
  }
  std::string result;
  for (const auto& line : lines)
    result += line.first + "=" + line.second + "\n";
  return result;
}

Status CheckSameIdentity(const TableConfig& table, const TableConfig& other) {
  struct Part {
    const char* name;
    std::string here;
    std::string there;
  };
  const Part parts[] = {
      {"dim", NumberToText(table.dim), NumberToText(other.dim)},
      {"dtype", FieldTypeName(table.dtype), FieldTypeName(other.dtype)},
      {"fields", FieldsToText(table), FieldsToText(other)},
      {"l1", NumberToText(table.l1), NumberToText(other.l1)},
      {"l2", NumberToText(table.l2), NumberToText(other.l2)},
      {kLastSeenKey, LastSeenToText(table), LastSeenToText(other)},
      {"seed", NumberToText(table.seed), NumberToText(other.seed)},
      {"initializer", InitializerToText(table.initializer),
       InitializerToText(other.initializer)},
      {"hash_version", NumberToText(table.hash_version),
       NumberToText(other.hash_version)},
  };
  for (const Part& part : parts) {
    if (part.here == part.there) continue;
    return Invalid("table \"", table.name, "\" has ", part.name, " ", part.here,
                   ", but the rows were written by table \"", other.name,
                   "\" with ", part.name, " ", part.there,
                   "; make the table with the same ", part.name, ".");
  }
  return Status::Ok();
}

}  // namespace tf_ext
