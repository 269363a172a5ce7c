// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/config.h"

#include <cmath>
#include <limits>
#include <string>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/row_layout.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// For EXPECT_PRED2: prints both when it fails.
bool Says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

constexpr char kAdam[] =
    "dim=16\n"
    "dtype=float32\n"
    "hash_version=1\n"
    "initializer=normal\n"
    "initializer.mean=0\n"
    "initializer.stddev=0.05\n"
    "name=deep\n"
    "optimizer=adam\n"
    "optimizer.bias_correction=row\n"
    "seed=17\n";

TableConfig Parse(const std::string& text) {
  TableConfig config;
  EXPECT_TRUE(IsOk(ParseTableConfig(text, &config)));
  return config;
}

std::string ErrorOf(const std::string& text) {
  TableConfig config;
  config.name = "untouched";
  const Status status = ParseTableConfig(text, &config);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
  EXPECT_EQ(config.name, "untouched");
  return status.message();
}

// kAdam with one line replaced or added, or removed if `line` is empty.
std::string With(const std::string& key, const std::string& line) {
  std::string text = kAdam;
  const size_t begin = text.find(key + "=");
  if (begin == text.npos) return text + line + "\n";
  const size_t end = text.find('\n', begin) + 1;
  return text.replace(begin, end - begin, line.empty() ? "" : line + "\n");
}

TEST(ConfigTest, ReadsAndPrintsTheCanonicalText) {
  const TableConfig config = Parse(kAdam);
  EXPECT_EQ(config.name, "deep");
  EXPECT_EQ(config.dim, 16);
  EXPECT_EQ(config.seed, 17u);
  EXPECT_EQ(config.initializer.kind, InitializerKind::kNormal);
  EXPECT_EQ(config.initializer.b, 0.05f);
  EXPECT_STREQ(config.rule.spec().name, "adam");
  EXPECT_EQ(config.rule.Get("bias_correction"), 1);
  EXPECT_EQ(TableConfigToText(config), kAdam);
}

TEST(ConfigTest, LinesMayComeInAnyOrderAndDefaultsBeLeftOut) {
  const TableConfig config =
      Parse("optimizer=adagrad\nname=a=b c\n\ninitializer=zeros\ndim=1");
  EXPECT_EQ(config.name, "a=b c");
  EXPECT_EQ(TableConfigToText(config),
            "dim=1\ndtype=float32\nhash_version=1\ninitializer=zeros\n"
            "name=a=b c\noptimizer=adagrad\n"
            "optimizer.initial_accumulator_value=0.1\nseed=0\n");
}

TEST(ConfigTest, EveryKindSurvivesTheText) {
  const InitializerKind initializers[] = {
      InitializerKind::kZeros, InitializerKind::kConstant,
      InitializerKind::kUniform, InitializerKind::kNormal,
      InitializerKind::kTruncatedNormal};
  for (const InitializerKind initializer : initializers) {
    for (const RuleSpec* rule : AllRules()) {
      for (const bool flag : {false, true}) {
        TableConfig config;
        config.name = "n\xc3\xa4me";
        config.dim = kMaxDim;
        config.seed = std::numeric_limits<uint64_t>::max();
        config.initializer = {initializer, -1.0f / 3, 1e-30f};
        config.rule = RuleConfig(*rule);
        config.last_seen = flag ? LastSeen::kSecond : LastSeen::kStep;
        config.statistics = flag ? 1 : 2;
        bool on = flag;
        for (const IdentityKey& key : rule->identity) {
          // One that is not rounded to a float32 keeps all of its digits.
          config.rule.Set(key.name, key.is_flag()          ? on
                                    : key.range != nullptr ? key.start
                                                           : 16777217.0f / 3);
          on = !on;
        }
        const std::string text = TableConfigToText(config);
        const TableConfig read = Parse(text);
        EXPECT_EQ(TableConfigToText(read), text);
        EXPECT_EQ(read.seed, config.seed);
        EXPECT_EQ(&read.rule.spec(), rule);
        EXPECT_EQ(read.last_seen, config.last_seen);
        EXPECT_EQ(read.statistics, config.statistics);
        for (const IdentityKey& key : rule->identity) {
          EXPECT_EQ(read.rule.Number(key.name), config.rule.Number(key.name));
          EXPECT_TRUE(key.range == nullptr ||
                      read.rule.Number(key.name) == key.start);
        }
        EXPECT_EQ(read.initializer.kind, initializer);
        EXPECT_TRUE(CheckSameIdentity(config, read).ok());
        if (initializer == InitializerKind::kUniform) {
          EXPECT_EQ(read.initializer.a, config.initializer.a);
          EXPECT_EQ(read.initializer.b, config.initializer.b);
        }
      }
    }
  }
}

TEST(ConfigTest, MissingKeysAreNamed) {
  for (const char* key : {"dim", "name", "optimizer", "initializer",
                          "initializer.mean", "initializer.stddev"}) {
    EXPECT_PRED2(Says, ErrorOf(With(key, "")),
                 "the key " + std::string(key) + " is missing");
  }
}

TEST(ConfigTest, UnknownAndRepeatedKeysAreNamed) {
  EXPECT_PRED2(Says, ErrorOf(std::string(kAdam) + "optimizer.centered=1\n"),
               "unknown key optimizer.centered=1; with this optimizer and "
               "initializer the keys are admission, dim, dtype, hash_version, "
               "initializer, initializer.mean, initializer.stddev, "
               "l1, l2, last_seen, name, "
               "optimizer, optimizer.bias_correction, seed, slot_dtype, "
               "statistics, unknown.");
  // Keys that may be left out are among them.
  EXPECT_PRED2(
      Says,
      ErrorOf("dim=2\ninitializer=zeros\nname=a\noptimizer=sgd\n"
              "sed=1\n"),
      "unknown key sed=1; with this optimizer and initializer the "
      "keys are admission, dim, dtype, hash_version, initializer, l1, "
      "l2, last_seen, name, optimizer, seed, slot_dtype, statistics, unknown.");
  EXPECT_PRED2(Says, ErrorOf(std::string(kAdam) + "dim=32\n"),
               "the key dim appears twice, with \"16\" and \"32\"");
  EXPECT_PRED2(Says, ErrorOf(std::string(kAdam) + "dimension\n"),
               "\"dimension\" is not of the form key=value");
}

TEST(ConfigTest, ValuesOutOfRangeAreNamed) {
  struct Case {
    const char* key;
    const char* value;
    const char* says;
  };
  const Case cases[] = {
      {"dim", "0", "dim=0 is not allowed; it must be from 1 to 65536"},
      {"dim", "65537", "dim=65537 is not allowed"},
      {"dim", "99999999999999999999", "it must be from 1 to 65536"},
      {"dim", "4.0", "dim=4.0 is not allowed"},
      {"dim", "", "dim= is not allowed"},
      {"dtype", "float64",
       "dtype=float64 is not allowed; it must be one of float32, float16, "
       "bfloat16"},
      {"l2", "-1", "l2=-1 is not allowed; it must be 0 or more and finite"},
      {"l1", "nan", "l1=nan is not allowed; it must be 0 or more and finite"},
      {"hash_version", "2", "hash_version=2 is not allowed; it must be 1"},
      {"seed", "-1", "seed=-1 is not allowed; it must be an integer from 0"},
      {"seed", "18446744073709551616", "to 18446744073709551615"},
      {"initializer", "xavier",
       "initializer=xavier is not allowed; it must be one of zeros, "
       "constant, uniform, normal, truncated_normal"},
      {"initializer.mean", "nan", "initializer.mean=nan is not allowed"},
      {"initializer.mean", "1e39", "must be a finite float32"},
      {"initializer.stddev", "-0.5",
       "initializer.stddev=-0.5 is not allowed; it must be at least 0"},
      {"initializer.stddev", "0.5x", "initializer.stddev=0.5x"},
      {"initializer.stddev", "1e38",
       "it must be so small that all weights are finite, with "
       "initializer.mean=0"},
      {"optimizer", "adamax",
       "optimizer=adamax is not allowed; it must be one of sgd, momentum, "
       "adagrad, row_wise_adagrad, adam, dense_adam, ftrl, rmsprop, lion, "
       "none"},
      {"optimizer.bias_correction", "column",
       "it must be \"global\" or \"row\""},
      {"last_seen", "minute",
       "last_seen=minute is not allowed; it must be one of step, second"},
      {"last_seen", "", "last_seen= is not allowed"},
      {"statistics", "click",
       "statistics=click is not allowed; it must be \"show\" or "
       "\"show,click\""},
      {"statistics", "", "statistics= is not allowed"},
      {"name", "", "of 1 to 200 bytes, found 0 bytes"},
      {"name", "a\tb", "name has the control character 9 at byte 1"},
      {"name", "\x7f", "name has the control character 127 at byte 0"},
  };
  for (const Case& c : cases) {
    EXPECT_PRED2(Says, ErrorOf(With(c.key, std::string(c.key) + "=" + c.value)),
                 c.says);
  }
  const std::string long_name(200, 'x');
  EXPECT_EQ(Parse(With("name", "name=" + long_name)).name, long_name);
  EXPECT_PRED2(Says, ErrorOf(With("name", "name=" + long_name + "y")),
               "found 201 bytes");
  const std::string with_l2 = std::string(kAdam) + "l2=2\nl1=";
  EXPECT_EQ(Parse(with_l2 + "20000\n").l1, 20000);
  EXPECT_PRED2(Says, ErrorOf(with_l2 + "20001\n"),
               "l2=2 is not allowed; it must be 0, or at least l1 / 10000");
}

TEST(ConfigTest, CheckRefusesWhatTheTextCannotSay) {
  TableConfig config = Parse(kAdam);
  config.name = "two\nlines";
  EXPECT_PRED2(Says, CheckTableConfig(config).message(),
               "control character 10 at byte 3");
  config = Parse(kAdam);
  config.initializer = {InitializerKind::kUniform, 1, -1};
  EXPECT_PRED2(Says, CheckTableConfig(config).message(),
               "initializer.maxval=-1 is not allowed; it must be at least "
               "initializer.minval=1");
  config.initializer = {InitializerKind::kUniform, -3e38f, 3e38f};
  EXPECT_PRED2(Says, CheckTableConfig(config).message(), "width");
  config.initializer = {InitializerKind::kConstant, INFINITY, 0};
  EXPECT_PRED2(Says, CheckTableConfig(config).message(),
               "initializer.value=inf");
  config = Parse(kAdam);
  config.rule = RuleConfig(*FindRule("ftrl"));
  config.rule.Set("initial_accumulator_value", -1);
  EXPECT_PRED2(Says, CheckTableConfig(config).message(),
               "optimizer.initial_accumulator_value=-1");
}

TEST(ConfigTest, AnotherIdentityNamesBothValues) {
  struct Case {
    const char* key;
    const char* line;
    const char* says;
  };
  const Case cases[] = {
      {"last_seen", "last_seen=step", "step[1] int32, last_seen[1] int32;"},
      {"statistics", "statistics=show,click",
       "step[1] int32, show[1] float32, click[1] float32;"},
      {"dim", "dim=8",
       "table \"deep\" has dim 16, but the rows were written by table "
       "\"deep\" with dim 8"},
      {"seed", "seed=18", "has seed 17, but"},
      {"initializer.stddev", "initializer.stddev=0.1",
       "with initializer normal initializer.mean=0 initializer.stddev=0.1"},
      {"optimizer.bias_correction", "optimizer.bias_correction=global",
       "has fields weights[16] float32, m[16] float32, v[16] float32, "
       "step[1] int32, but the rows were written by table \"deep\" with "
       "fields weights[16] float32, m[16] float32, v[16] float32;"},
  };
  for (const Case& c : cases) {
    const Status status =
        CheckSameIdentity(Parse(kAdam), Parse(With(c.key, c.line)));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.line;
    EXPECT_PRED2(Says, status.message(), c.says);
  }
  EXPECT_TRUE(
      CheckSameIdentity(Parse(kAdam), Parse(With("name", "name=x"))).ok());
  TableConfig one = Parse(kAdam);
  one.rule = RuleConfig(*FindRule("adagrad"));
  TableConfig two = one;
  two.rule.Set("initial_accumulator_value", 1);
  EXPECT_TRUE(CheckSameIdentity(one, two).ok());
  one.last_seen = LastSeen::kStep;
  two.last_seen = LastSeen::kSecond;
  EXPECT_PRED2(Says, CheckSameIdentity(one, two).message(),
               "has last_seen step, but the rows were written by table "
               "\"deep\" with last_seen second;");
}

std::string Describe(const RowLayout& layout) {
  std::string text;
  for (const Field& field : layout.fields()) {
    text += field.name + ":" + std::to_string(field.count) + "@" +
            std::to_string(field.offset) + " ";
  }
  return text + std::to_string(layout.raw_bytes()) + "/" +
         std::to_string(layout.stride());
}

TEST(RowLayoutTest, FieldsFollowEachOther) {
  TableConfig config = Parse(With("dim", "dim=3"));
  EXPECT_EQ(Describe(RowLayout(config)),
            "weights:3@8 m:3@20 v:3@32 step:1@44 48/48");
  config.rule.Set("bias_correction", 0);
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 m:3@20 v:3@32 44/48");
  config.rule = RuleConfig(*FindRule("sgd"));
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 20/24");
  config.rule = RuleConfig(*FindRule("none"));
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 20/24");
  config.rule = RuleConfig(*FindRule("momentum"));
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 momentum:3@20 32/32");
  config.rule = RuleConfig(*FindRule("row_wise_adagrad"));
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 accumulator:1@20 24/24");
  config.rule = RuleConfig(*FindRule("ftrl"));
  EXPECT_EQ(Describe(RowLayout(config)),
            "weights:3@8 accumulator:3@20 linear:3@32 44/48");
  config.rule = RuleConfig(*FindRule("rmsprop"));
  config.rule.Set("centered", 1).Set("momentum_field", 1);
  EXPECT_EQ(Describe(RowLayout(config)),
            "weights:3@8 velocity:3@20 momentum:3@32 average_gradient:3@44 "
            "56/56");
  config.dim = 16;
  config.rule = RuleConfig(*FindRule("adagrad"));
  const RowLayout layout(config);
  EXPECT_EQ(layout.stride(), 136);
  EXPECT_EQ(layout.Find("accumulator")->offset, 72);
  EXPECT_EQ(layout.Find("accumulator")->start,
            static_cast<double>(config.rule.Get("initial_accumulator_value")));
  EXPECT_EQ(layout.Find("linear"), nullptr);
}

TEST(ConfigTest, ReadsAndPrintsAdmission) {
  const std::string text = std::string(kAdam);
  for (const std::string lines :
       {"admission=count\nadmission.n=3\n",
        "admission=count\nadmission.forget=9223372036854775807\n"
        "admission.n=255\n",
        "admission=probability\nadmission.p=1e-05\n"}) {
    EXPECT_EQ(TableConfigToText(Parse(text + lines)), lines + text);
    EXPECT_EQ(Parse(text + lines).statistics_width(), 1);
    EXPECT_TRUE(CheckSameIdentity(Parse(text), Parse(text + lines)).ok());
  }
  EXPECT_EQ(Parse(text).statistics_width(), 0);
  EXPECT_EQ(TableConfigToText(Parse(text + "unknown=zeros")),
            text + "unknown=zeros\n");
  EXPECT_EQ(
      TableConfigToText(Parse(text + "unknown=shared\nunknown.buckets=1")),
      text + "unknown=shared\n");
  const std::string shared = "unknown=shared\nunknown.buckets=7\n";
  EXPECT_EQ(TableConfigToText(Parse(text + shared)), text + shared);
  EXPECT_EQ(TableConfigToText(Parse(text + "unknown=initial")), text);
}

TEST(ConfigTest, ChecksAdmission) {
  const auto error_of = [](const std::string& lines) {
    return ErrorOf(kAdam + lines);
  };
  EXPECT_PRED2(Says, error_of("admission=often"),
               "admission=often is not allowed; it must be \"count\"");
  EXPECT_PRED2(Says, error_of("admission=count"), "admission.n is missing");
  EXPECT_PRED2(Says, error_of("admission=probability"),
               "admission.p is missing");
  for (const std::string n :
       {"0", "256", "-1", "2.5", "99999999999999999999"}) {
    EXPECT_PRED2(Says, error_of("admission=count\nadmission.n=" + n),
                 "must be an integer from 1 to 255");
  }
  for (const std::string forget : {"0", "-5", "9223372036854775808", "x"}) {
    EXPECT_PRED2(Says,
                 error_of("admission=count\nadmission.n=1\n"
                          "admission.forget=" +
                          forget),
                 "admission.forget=" + forget + " is not allowed");
  }
  for (const std::string p : {"0", "-0.5", "1.01", "nan", "inf", ""}) {
    EXPECT_PRED2(Says, error_of("admission=probability\nadmission.p=" + p),
                 "must be a number above 0, at most 1");
  }
  EXPECT_PRED2(Says, error_of("admission.n=1"), "unknown key admission.n=1");
  EXPECT_PRED2(Says, error_of("unknown=ones"), "unknown=ones");
}

}  // namespace
}  // namespace tf_ext
