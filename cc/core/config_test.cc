#include "cc/core/config.h"

#include <cmath>
#include <limits>
#include <string>

#include "cc/core/row_layout.h"
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
  const Status status = ParseTableConfig(text, &config);
  EXPECT_TRUE(status.ok()) << status.message();
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

// kAdam with one line replaced, or removed if `line` is empty.
std::string With(const std::string& key, const std::string& line) {
  std::string text = kAdam;
  const size_t begin = text.find(key + "=");
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
  EXPECT_EQ(config.rule.kind, RuleKind::kAdam);
  EXPECT_TRUE(config.rule.bias_correction_by_row);
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
  const RuleKind rules[] = {RuleKind::kSgd,     RuleKind::kMomentum,
                            RuleKind::kAdagrad, RuleKind::kRowWiseAdagrad,
                            RuleKind::kAdam,    RuleKind::kFtrl,
                            RuleKind::kRmsprop};
  for (const InitializerKind initializer : initializers) {
    for (const RuleKind rule : rules) {
      for (const bool flag : {false, true}) {
        TableConfig config;
        config.name = "n\xc3\xa4me";
        config.dim = kMaxDim;
        config.seed = std::numeric_limits<uint64_t>::max();
        config.initializer = {initializer, -1.0f / 3, 1e-30f};
        config.rule.kind = rule;
        config.rule.initial_accumulator_value = 16777217.0f / 3;
        config.rule.bias_correction_by_row = flag;
        config.rule.centered = flag;
        config.rule.momentum_field = !flag;
        const std::string text = TableConfigToText(config);
        const TableConfig read = Parse(text);
        EXPECT_EQ(TableConfigToText(read), text);
        EXPECT_EQ(read.seed, config.seed);
        EXPECT_EQ(read.rule.kind, rule);
        EXPECT_EQ(read.initializer.kind, initializer);
        EXPECT_TRUE(CheckSameIdentity(config, read).ok());
        if (initializer == InitializerKind::kUniform) {
          EXPECT_EQ(read.initializer.a, config.initializer.a);
          EXPECT_EQ(read.initializer.b, config.initializer.b);
        }
        if (rule == RuleKind::kFtrl) {
          EXPECT_EQ(read.rule.initial_accumulator_value,
                    config.rule.initial_accumulator_value);
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
               "initializer the keys are dim, dtype, hash_version, "
               "initializer, initializer.mean, initializer.stddev, name, "
               "optimizer, optimizer.bias_correction, seed.");
  EXPECT_PRED2(Says, ErrorOf(std::string(kAdam) + "dim=32\n"),
               "the key dim is there twice, with \"16\" and \"32\"");
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
      {"dtype", "float16", "dtype=float16 is not allowed; it must be float32"},
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
      {"optimizer", "lion",
       "optimizer=lion is not allowed; it must be one of sgd, momentum, "
       "adagrad, row_wise_adagrad, adam, ftrl, rmsprop, none"},
      {"optimizer.bias_correction", "column",
       "it must be \"global\" or \"row\""},
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
  config.rule.kind = RuleKind::kFtrl;
  config.rule.initial_accumulator_value = -1;
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
  one.rule.kind = RuleKind::kAdagrad;
  TableConfig two = one;
  two.rule.initial_accumulator_value = 1;
  EXPECT_TRUE(CheckSameIdentity(one, two).ok());
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
  config.rule.bias_correction_by_row = false;
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 m:3@20 v:3@32 44/48");
  config.rule.kind = RuleKind::kSgd;
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 20/24");
  config.rule.kind = RuleKind::kNone;
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 20/24");
  config.rule.kind = RuleKind::kMomentum;
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 momentum:3@20 32/32");
  config.rule.kind = RuleKind::kRowWiseAdagrad;
  EXPECT_EQ(Describe(RowLayout(config)), "weights:3@8 accumulator:1@20 24/24");
  config.rule.kind = RuleKind::kFtrl;
  EXPECT_EQ(Describe(RowLayout(config)),
            "weights:3@8 accumulator:3@20 linear:3@32 44/48");
  config.rule.kind = RuleKind::kRmsprop;
  config.rule.centered = config.rule.momentum_field = true;
  EXPECT_EQ(Describe(RowLayout(config)),
            "weights:3@8 velocity:3@20 momentum:3@32 average_gradient:3@44 "
            "56/56");
  config.dim = 16;
  config.rule.kind = RuleKind::kAdagrad;
  const RowLayout layout(config);
  EXPECT_EQ(layout.stride(), 136);
  EXPECT_EQ(layout.Find("accumulator")->offset, 72);
  EXPECT_EQ(layout.Find("accumulator")->start,
            static_cast<double>(config.rule.initial_accumulator_value));
  EXPECT_EQ(layout.Find("linear"), nullptr);
}

}  // namespace
}  // namespace tf_ext
