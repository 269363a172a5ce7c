// SPDX-License-Identifier: Apache-2.0
// The text form of a table's configuration, line by line.
#ifndef TF_EXT_CC_CORE_TABLE_CONFIG_LINES_H_
#define TF_EXT_CC_CORE_TABLE_CONFIG_LINES_H_

#include <charconv>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cc/core/support/message.h"
#include "cc/core/support/status.h"

namespace tf_ext {

template <typename Entries>
std::string AllowedNames(const Entries& entries) {
  std::string names;
  for (const auto& entry : entries) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

template <typename Number>
std::string NumberToText(Number value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

inline Status BadValue(std::string_view key, std::string_view value,
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
        return Invalid("table config: the line \"", line,
                       "\" is not of the form key=value.");
      }
      const std::string key(line.substr(0, equals));
      const std::string value(line.substr(equals + 1));
      const auto inserted = values_.emplace(key, value);
      if (!inserted.second) {
        return Invalid("table config: the key ", key, " appears twice, with \"",
                       inserted.first->second, "\" and \"", value, "\".");
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
    return Invalid("table config: the key ", key, " is missing.");
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
    TF_EXT_RETURN_IF_ERROR(TakeRequired(key, &value));
    return ParseNumber(key, value, allowed, number);
  }

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
    return Invalid("table config: unknown key ", values_.begin()->first, "=",
                   values_.begin()->second,
                   "; with this optimizer and initializer the keys are ",
                   allowed, ".");
  }

 private:
  std::map<std::string, std::string> values_;
  std::set<std::string> known_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_CONFIG_LINES_H_
