#include "cc/core/config.h"

#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "cc/core/row_layout.h"

namespace tf_ext {
namespace {

template <typename Kind>
struct KindName {
  Kind kind;
  const char* name;
};

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

constexpr KindName<RuleKind> kRules[] = {
    {RuleKind::kSgd, "sgd"},
    {RuleKind::kMomentum, "momentum"},
    {RuleKind::kAdagrad, "adagrad"},
    {RuleKind::kRowWiseAdagrad, "row_wise_adagrad"},
    {RuleKind::kAdam, "adam"},
    {RuleKind::kFtrl, "ftrl"},
    {RuleKind::kRmsprop, "rmsprop"},
    {RuleKind::kNone, "none"},
};

constexpr char kAccumulatorKey[] = "optimizer.initial_accumulator_value";
constexpr char kBiasCorrectionKey[] = "optimizer.bias_correction";
constexpr char kCenteredKey[] = "optimizer.centered";
constexpr char kMomentumFieldKey[] = "optimizer.momentum_field";

template <typename Entries>
std::string AllowedNames(const Entries& entries) {
  std::string names;
  for (const auto& entry : entries) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

const InitializerText& TextOf(InitializerKind kind) {
  for (const InitializerText& entry : kInitializers) {
    if (entry.kind == kind) return entry;
  }
  return kInitializers[0];
}

const char* NameOf(RuleKind kind) {
  for (const auto& entry : kRules) {
    if (entry.kind == kind) return entry.name;
  }
  return kRules[0].name;
}

bool HasAccumulatorStart(RuleKind kind) {
  return kind == RuleKind::kAdagrad || kind == RuleKind::kRowWiseAdagrad ||
         kind == RuleKind::kFtrl;
}

template <typename Number>
std::string NumberToText(Number value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

Status BadValue(std::string_view key, std::string_view value,
                std::string_view allowed) {
  std::string message = "table config: ";
  message.append(key).append("=").append(value);
  message.append(" is not allowed; it must be ").append(allowed).append(".");
  return Status::InvalidArgument(std::move(message));
}

// The lines of a config, taken one key at a time so that what is left over at
// the end is unknown.
class Lines {
 public:
  Status Read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end == text.npos ? text.size() : end + 1);
      if (line.empty()) continue;
      const size_t equals = line.find('=');
      if (equals == line.npos) {
        return Status::InvalidArgument("table config: the line \"" +
                                       std::string(line) +
                                       "\" is not of the form key=value.");
      }
      const std::string key(line.substr(0, equals));
      const std::string value(line.substr(equals + 1));
      const auto inserted = values_.emplace(key, value);
      if (!inserted.second) {
        return Status::InvalidArgument(
            "table config: the key " + key + " is there twice, with \"" +
            inserted.first->second + "\" and \"" + value + "\".");
      }
    }
    return Status::Ok();
  }

  // False if the key is not there.
  bool Take(const std::string& key, std::string* value) {
    known_.insert(key);
    const auto it = values_.find(key);
    if (it == values_.end()) return false;
    *value = std::move(it->second);
    values_.erase(it);
    return true;
  }

  Status TakeRequired(const std::string& key, std::string* value) {
    if (Take(key, value)) return Status::Ok();
    return Status::InvalidArgument("table config: the key " + key +
                                   " is missing.");
  }

  template <typename Number>
  Status TakeNumber(const std::string& key, const char* allowed,
                    Number* number) {
    std::string value;
    if (!Take(key, &value)) return Status::Ok();
    return ParseNumber(key, value, allowed, number);
  }

  template <typename Number>
  Status TakeRequiredNumber(const std::string& key, const char* allowed,
                            Number* number) {
    std::string value;
    Status status = TakeRequired(key, &value);
    if (!status.ok()) return status;
    return ParseNumber(key, value, allowed, number);
  }

  Status TakeFlag(const std::string& key, const char* off, const char* on,
                  bool* flag) {
    std::string value;
    if (!Take(key, &value)) return Status::Ok();
    if (value != off && value != on) {
      return BadValue(key, value,
                      std::string("\"") + off + "\" or \"" + on + "\"");
    }
    *flag = value == on;
    return Status::Ok();
  }

  Status CheckNothingLeft() const {
    if (values_.empty()) return Status::Ok();
    std::string allowed;
    for (const std::string& key : known_) {
      if (!allowed.empty()) allowed += ", ";
      allowed += key;
    }
    return Status::InvalidArgument(
        "table config: unknown key " + values_.begin()->first + "=" +
        values_.begin()->second +
        "; with this optimizer and initializer the keys are " + allowed + ".");
  }

 private:
  template <typename Number>
  static Status ParseNumber(const std::string& key, const std::string& value,
                            const char* allowed, Number* number) {
    const char* const end = value.data() + value.size();
    const auto result = std::from_chars(value.data(), end, *number);
    if (result.ec != std::errc() || result.ptr != end) {
      return BadValue(key, value, allowed);
    }
    return Status::Ok();
  }

  std::map<std::string, std::string> values_;
  std::set<std::string> known_;
};

constexpr char kFloatAllowed[] = "a finite float32 number";
constexpr char kSeedAllowed[] = "an integer from 0 to 18446744073709551615";

Status ParseInitializer(Lines* lines, InitializerConfig* initializer) {
  std::string name;
  Status status = lines->TakeRequired("initializer", &name);
  if (!status.ok()) return status;
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
    status =
        lines->TakeRequiredNumber(found->a, kFloatAllowed, &initializer->a);
    if (!status.ok()) return status;
  }
  if (found->b != nullptr) {
    status =
        lines->TakeRequiredNumber(found->b, kFloatAllowed, &initializer->b);
  }
  return status;
}

Status ParseRule(Lines* lines, RuleConfig* rule) {
  std::string name;
  Status status = lines->TakeRequired("optimizer", &name);
  if (!status.ok()) return status;
  bool found = false;
  for (const auto& entry : kRules) {
    if (name != entry.name) continue;
    rule->kind = entry.kind;
    found = true;
  }
  if (!found) {
    return BadValue("optimizer", name, "one of " + AllowedNames(kRules));
  }
  if (HasAccumulatorStart(rule->kind)) {
    return lines->TakeNumber(kAccumulatorKey, kFloatAllowed,
                             &rule->initial_accumulator_value);
  }
  if (rule->kind == RuleKind::kAdam) {
    return lines->TakeFlag(kBiasCorrectionKey, "global", "row",
                           &rule->bias_correction_by_row);
  }
  if (rule->kind == RuleKind::kRmsprop) {
    status = lines->TakeFlag(kCenteredKey, "0", "1", &rule->centered);
    if (!status.ok()) return status;
    return lines->TakeFlag(kMomentumFieldKey, "0", "1", &rule->momentum_field);
  }
  return Status::Ok();
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
    return Status::InvalidArgument(
        "table config: name has the control character " +
        NumberToText(static_cast<int>(byte)) + " at byte " + NumberToText(i) +
        "; it must be free of control characters.");
  }
  return Status::Ok();
}

Status CheckInitializer(const InitializerConfig& initializer) {
  const InitializerText& text = TextOf(initializer.kind);
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
      return Status::Ok();
    case InitializerKind::kZeros:
    case InitializerKind::kConstant:
      return Status::Ok();
  }
  return Status::Ok();
}

std::string FieldsToText(const TableConfig& config) {
  const RowLayout layout(config);
  std::string text;
  for (const Field& field : layout.fields()) {
    if (!text.empty()) text += ", ";
    text += field.name + "[" + NumberToText(field.count) + "] ";
    text += field.type == FieldType::kFloat32 ? "float32" : "int32";
  }
  return text;
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

Status CheckTableConfig(const TableConfig& config) {
  Status status = CheckName(config.name);
  if (!status.ok()) return status;
  if (config.dim < 1 || config.dim > kMaxDim) {
    return BadValue("dim", NumberToText(config.dim), "from 1 to 65536");
  }
  if (config.dtype != "float32") {
    return BadValue("dtype", config.dtype, "float32");
  }
  if (config.hash_version != 1) {
    return BadValue("hash_version", NumberToText(config.hash_version),
                    "1, the only version this build knows");
  }
  status = CheckInitializer(config.initializer);
  if (!status.ok()) return status;
  const float start = config.rule.initial_accumulator_value;
  if (HasAccumulatorStart(config.rule.kind) &&
      !(std::isfinite(start) && start >= 0)) {
    return BadValue(kAccumulatorKey, NumberToText(start),
                    "finite and at least 0");
  }
  return Status::Ok();
}

Status ParseTableConfig(const std::string& text, TableConfig* config) {
  TableConfig parsed;
  Lines lines;
  Status status = lines.Read(text);
  if (!status.ok()) return status;
  status = lines.TakeRequired("name", &parsed.name);
  if (!status.ok()) return status;
  status = lines.TakeRequiredNumber("dim", "from 1 to 65536", &parsed.dim);
  if (!status.ok()) return status;
  lines.Take("dtype", &parsed.dtype);
  status = lines.TakeNumber("seed", kSeedAllowed, &parsed.seed);
  if (!status.ok()) return status;
  status =
      lines.TakeNumber("hash_version", "1, the only version this build knows",
                       &parsed.hash_version);
  if (!status.ok()) return status;
  status = ParseInitializer(&lines, &parsed.initializer);
  if (!status.ok()) return status;
  status = ParseRule(&lines, &parsed.rule);
  if (!status.ok()) return status;
  status = lines.CheckNothingLeft();
  if (!status.ok()) return status;
  status = CheckTableConfig(parsed);
  if (status.ok()) *config = std::move(parsed);
  return status;
}

std::string TableConfigToText(const TableConfig& config) {
  std::map<std::string, std::string> lines;  // sorted by key
  lines["dim"] = NumberToText(config.dim);
  lines["dtype"] = config.dtype;
  lines["hash_version"] = NumberToText(config.hash_version);
  lines["name"] = config.name;
  lines["seed"] = NumberToText(config.seed);
  const InitializerText& text = TextOf(config.initializer.kind);
  lines["initializer"] = text.name;
  if (text.a != nullptr) lines[text.a] = NumberToText(config.initializer.a);
  if (text.b != nullptr) lines[text.b] = NumberToText(config.initializer.b);
  const RuleConfig& rule = config.rule;
  lines["optimizer"] = NameOf(rule.kind);
  if (HasAccumulatorStart(rule.kind)) {
    lines[kAccumulatorKey] = NumberToText(rule.initial_accumulator_value);
  }
  if (rule.kind == RuleKind::kAdam) {
    lines[kBiasCorrectionKey] = rule.bias_correction_by_row ? "row" : "global";
  }
  if (rule.kind == RuleKind::kRmsprop) {
    lines[kCenteredKey] = rule.centered ? "1" : "0";
    lines[kMomentumFieldKey] = rule.momentum_field ? "1" : "0";
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
      {"dtype", table.dtype, other.dtype},
      {"fields", FieldsToText(table), FieldsToText(other)},
      {"seed", NumberToText(table.seed), NumberToText(other.seed)},
      {"initializer", InitializerToText(table.initializer),
       InitializerToText(other.initializer)},
      {"hash_version", NumberToText(table.hash_version),
       NumberToText(other.hash_version)},
  };
  for (const Part& part : parts) {
    if (part.here == part.there) continue;
    return Status::InvalidArgument(
        std::string("table \"") + table.name + "\" has " + part.name + " " +
        part.here + ", but the rows were written by table \"" + other.name +
        "\" with " + part.name + " " + part.there +
        "; make the table with the same " + part.name + ".");
  }
  return Status::Ok();
}

}  // namespace tf_ext
