# SPDX-License-Identifier: Apache-2.0
"""Small files in the shapes that data sets and programs have."""

import csv
import datetime
import gzip
import io
import json

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

import tf_ext
from oracles.real_files import RealFile

Csv, Field = tf_ext.data.Csv, tf_ext.data.Field
_DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


def _csv(rows, **options):
    file = io.StringIO(newline="")
    csv.writer(file, **{"lineterminator": "\n", **options}).writerows(rows)
    return file.getvalue()


def _int(name, default=None, **options):
    return Field(name, "int64", default=default, **options)


def _float(name, default=None):
    return Field(name, "float32", default=default)


def _movielens():
    ratings = [(1, 1193, 5, 978300760), (1, 661, 3, 978302109)]
    ratings += [(2, 1357, 4, 978298709), (6040, 3952, 1, 956704887)]
    fields = [
        _int("user"),
        Field("item"),
        _float("stars"),
        _int("at", time="s"),
    ]
    movies = "1::Toy Story (1995)::Animation|Children's|Comedy\n"
    movies += "73::Misérables, Les (1995)::Drama|Musical\n"
    movies += "9::Sudden: Death (1995)::Action\n"
    genres = Field("genres", separator="|")
    titled = (
        'movieId,title,genres\n1,"American President, The (1995)",Drama|War'
    )
    titled += '\n2,"""Great"" Performances"" Cats (1998)",(no genres listed)\n'
    titled = titled.replace('Performances"" ', 'Performances "" ')
    return [
        RealFile(
            "movielens_100k.data",
            _csv(ratings, delimiter="\t"),
            fields,
            "tsv",
            by_pandas={"sep": "\t"},
        ),
        RealFile(
            "movielens_1m_ratings.dat",
            "".join("::".join(map(str, r)) + "\n" for r in ratings),
            fields,
            Csv("::", quotes=False),
            by_pandas={"sep": "::", "engine": "python"},
        ),
        RealFile(
            "movielens_1m_movies.dat",
            movies.encode("latin-1"),
            [_int("id"), Field("title"), genres],
            Csv("::", quotes=False, encoding="latin-1"),
            by_pandas={"sep": "::", "engine": "python", "encoding": "latin-1"},
        ),
        RealFile(
            "movielens_25m_movies.csv",
            titled,
            [Field("title"), _int("movieId"), genres],
            header=True,
        ),
        RealFile(
            "movielens_25m_ratings.csv",
            "userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n"
            "1,306,3.5,1147868817\n162541,63876,0.5,1240953505\n",
            [
                _int("userId"),
                _int("movieId"),
                _float("rating"),
                _int("timestamp", time="s"),
            ],
            header=True,
        ),
    ]


def _census_and_books():
    adult = "39, State-gov, 77516, Bachelors, <=50K\n"
    adult += "50, ?, 83311, Bachelors, >50K\n38, Private, 215646, ?, <=50K\n"
    fields = [_int("age"), Field("work"), _float("weight"), Field("school")]
    old = [
        *fields,
        Field("high", "float32", values={"<=50K": 0.0, ">50K": 1.0}),
    ]
    new = [
        *fields,
        Field("high", "float32", values={"<=50K.": 0.0, ">50K.": 1.0}),
    ]
    strip = {"skipinitialspace": True}
    books = [("User-ID", "ISBN", "Book-Rating"), (276725, "034545104X", 0)]
    books += [(276726, "0155061224", 5), (276727, '3 Söhne; "x"', 10)]
    books = _csv(
        books, delimiter=";", quoting=csv.QUOTE_ALL, lineterminator="\r\n"
    )
    return [
        RealFile(
            "adult.data",
            adult + "\n",
            old,
            Csv(strip=True),
            missing=("?",),
            by_pandas=strip,
        ),
        RealFile(
            "adult.test",
            "|1x3 Cross validator\n" + adult.replace("K\n", "K.\n"),
            new,
            Csv(strip=True, comment="|"),
            missing=("?",),
            by_pandas={**strip, "comment": "|"},
        ),
        RealFile(
            "book_crossing_ratings.csv",
            books.encode("latin-1"),
            [_int("User-ID"), Field("ISBN"), _float("Book-Rating")],
            Csv(";", encoding="latin-1"),
            header=True,
            by_pandas={"sep": ";", "encoding": "latin-1"},
        ),
    ]


def _advertising():
    lines = "1\t5\t\t68fd1e64\t\n0\t\t-1\tdeadbeef\te5ba7672\n"
    ranks = "Id,Label,I1,C1,C2\n10090000,0,9.0,1.0,3380029.0\n"
    ranks += '10090001,1,"",0.0,\n10090002,0,0,17.0,10128200.0\n'
    avazu = "id,click,hour,site_id,device_ip\n1000009418151094273,0,14102100,"
    avazu += "1fbe01fe,ddd2926e\n10000169349117863715,1,14102100,1fbe01fe,96809"
    avazu += "ac8\n"
    return [
        RealFile(
            "criteo.tsv",
            lines,
            [
                _float("click"),
                _float("I1", -1.0),
                _float("I2", -1.0),
                Field("C1"),
                Field("C2", default="none"),
            ],
            "tsv",
            by_pandas={"sep": "\t"},
        ),
        RealFile(
            "criteo_ranks.csv",
            ranks,
            [
                _int("Id"),
                _float("Label"),
                _float("I1", -1.0),
                _int("C1"),
                _int("C2", -1),
            ],
            header=True,
        ),
        RealFile(
            "avazu.csv",
            avazu,
            [_float("click"), Field("id"), _int("hour"), Field("device_ip")],
            header=True,
        ),
    ]


def _spreadsheets():
    rows = [
        ("Nr", "Betrag", "Notiz"),
        (1, "1234,5", "eins\nzwei"),
        (2, "-0,25", 'sagt "ja"; nein'),
        (3, "", "Größe"),
    ]
    german = _csv(rows, delimiter=";", lineterminator="\r\n")
    fields = [_int("Nr"), _float("Betrag", 0.0), Field("Notiz")]
    multi = _csv(
        [(1, "a\r\nb", "x"), (2, "", "\n"), (3, "c", 'd"\n"')],
        lineterminator="\r\n",
    )
    return [
        RealFile(
            "excel_german_utf8.csv",
            german.encode("utf-8-sig"),
            fields,
            Csv(";", decimal=","),
            header=True,
            by_pandas={"sep": ";", "encoding": "utf-8-sig"},
        ),
        RealFile(
            "excel_german_ansi.csv",
            german.encode("cp1252"),
            fields,
            Csv(";", decimal=",", encoding="cp1252"),
            header=True,
            by_pandas={"sep": ";", "encoding": "cp1252"},
        ),
        RealFile(
            "excel_line_breaks.csv",
            multi + "\r\n",
            [_int("n"), Field("a"), Field("b")],
        ),
        RealFile(
            "excel_shift_jis.csv",
            "番号,名前\n1,表示\n2,ソニー\n".encode("shift_jis"),
            [Field("名前"), _int("番号")],
            Csv(encoding="shift_jis"),
            header=True,
            by_pandas={"encoding": "shift_jis"},
        ),
    ]


def _frames():
    frame = pandas.DataFrame(
        {
            "id": [7, None, 3380029],
            "text": ["a\nb", 'c "d"', "e,f"],
            "at": pandas.to_datetime(
                ["2026-03-01 01:02:03.5", None, "1969-12-31 00:00:00.0"]
            ),
            "big": np.array([1, 2**63, 2**64 - 1], np.uint64),
        }
    )
    fields = [
        _int("id", -1),
        Field("text"),
        _int("at", 0, time="s"),
        Field("big", "uint64"),
    ]
    repeated = "x,y,x,x,y\n1,a,2,3,b\n4,c,5,6,d\n"
    table = pa.table(
        {"id": [1, 2], "s": ['q"uote', "two\nlines"], "t": [_DAY, _DAY]}
    )
    return [
        RealFile(
            "pandas.csv",
            lambda p: frame.to_csv(p, index=False),
            fields,
            header=True,
        ),
        RealFile(
            "pandas_index.csv", lambda p: frame.to_csv(p), fields, header=True
        ),
        RealFile(
            "pandas.csv.gz",
            lambda p: p.write_bytes(
                gzip.compress(frame.to_csv(index=False).encode())
            ),
            fields,
            header=True,
            by_pandas={"compression": "gzip"},
        ),
        RealFile(
            "pandas_repeated_names.csv",
            repeated,
            [_int("x.1"), Field("y.1"), _int("x"), _int("x.2")],
            header=True,
        ),
        RealFile(
            "pandas.jsonl",
            lambda p: frame.to_json(
                p,
                orient="records",
                lines=True,
                date_unit="ms",
                date_format="epoch",
            ),
            [
                _int("id", -1),
                Field("text"),
                _int("at", 0, time="ms"),
                Field("big", "uint64"),
            ],
            "jsonl",
        ),
        RealFile(
            "pandas_iso.jsonl",
            lambda p: frame.to_json(
                p, orient="records", lines=True, date_format="iso"
            ),
            fields,
            "jsonl",
        ),
        RealFile(
            "pandas.parquet", lambda p: frame.to_parquet(p), fields, "parquet"
        ),
        RealFile(
            "arrow_quoted.csv",
            lambda p: arrow_csv.write_csv(table, p),
            [_int("id"), Field("s"), _int("t", time="s")],
            header=True,
        ),
    ]


def _databases():
    copied = (
        'id,note,bag\n1,"line 1\nline 2\n\nline 4",a|b|\n2,"",|\n3,"""",c\n'
    )
    bigquery = "t,n\n2026-03-01 01:02:03 UTC,1\n2026-03-01 01:02:03.4 UTC,2\n"
    return [
        RealFile(
            "postgres_copy.csv",
            copied,
            [_int("id"), Field("note"), Field("bag", separator="|")],
            header=True,
        ),
        RealFile(
            "mysql_dump.tsv",
            "1\tann\t\\N\n2\t\\N\t2.5\n",
            [_int("id"), Field("name", default="?"), _float("x", -1.0)],
            "tsv",
            missing=("\\N",),
            by_pandas={"sep": "\t"},
        ),
        RealFile(
            "hive_text.txt",
            "1\x01a\x02b\x02\x01x\n2\x01\x01y\n",
            [_int("id"), Field("bag", separator="\x02"), Field("s")],
            Csv("\x01", quotes=False),
            by_pandas={"sep": "\x01"},
        ),
        RealFile(
            "bigquery.csv",
            bigquery,
            [_int("t", time="s"), _int("n")],
            header=True,
        ),
        RealFile(
            "oracle_pipes.txt",
            "1 | ann |2,5\n 2|bob | 3,0 \n",
            [_int("id"), Field("name"), _float("x")],
            Csv("|", strip=True, decimal=",", quotes=False),
            by_pandas={"sep": r"\s*\|\s*", "engine": "python"},
        ),
        RealFile(
            "two_pipes.txt",
            "1||a|b||x\n2||c||\n",
            [_int("id"), Field("bag", separator="|"), Field("s")],
            Csv("||", quotes=False),
            by_pandas={"sep": r"\|\|", "engine": "python"},
        ),
    ]


def _bags_and_ids():
    weighted = "u1,a:0.5|b:2|\nu2,\nu3,c:1\n"
    ids = "18446744073709551615,9007199254740993,7.0\n0,-5,-8.00\n"
    return [
        RealFile(
            "trailing_separators.csv",
            "1,a|b|,1;2;\n2,,3\n3,c|,\n",
            [
                _int("id"),
                Field("s", separator="|"),
                Field("n", "int32", separator=";"),
            ],
        ),
        RealFile(
            "weighted_bags.csv",
            weighted,
            [Field("user"), Field("w", separator="|", weight_separator=":")],
        ),
        RealFile(
            "large_ids.csv", ids, [Field("u", "uint64"), _int("i"), _int("f")]
        ),
        RealFile(
            "comments.csv",
            '# a "\nx,y\n#x,1\na,1\n#\nb,2\n',
            [Field("x"), _int("y")],
            Csv(comment="#"),
            header=True,
            by_pandas={"comment": "#"},
        ),
        RealFile(
            "blank_lines.csv",
            "\n\nx,y\r\n\r\na,1\r\n\nb,2",
            [Field("x"), _int("y")],
            header=True,
        ),
    ]


def _times():
    second = 1772326923
    epochs = "".join(
        f"{s},{s * 10**3 + 4},{s * 10**6 + 5},{s * 10**9 + 6}\n"
        for s in (second, 0, -1)
    )
    texts = ["2026-03-01", "2026-03-01T01:02:03Z", "2026-03-01 01:02:03.9"]
    texts += ["2026-03-01T01:02:03+05:30", "1969-12-31T23:59:59.5-0800"]
    iso = "".join(f"{n},{text}\n" for n, text in enumerate(texts))
    mixed = [{"at": text, "n": n} for n, text in enumerate(texts)]
    mixed += [{"at": second, "n": 7}, {"at": second + 0.75, "n": 8}]
    return [
        RealFile(
            "epochs.csv",
            epochs,
            [_int(unit, time=unit) for unit in ("s", "ms", "us", "ns")],
        ),
        RealFile("iso_times.csv", iso, [_int("n"), _int("at", time="s")]),
        RealFile(
            "times.jsonl",
            "\n".join(map(json.dumps, mixed)),
            [_int("n"), _int("at", time="s")],
            "jsonl",
        ),
    ]


def _objects():
    events = [
        {"user": {"geo": {"country": "fr"}, "id": 7.0}, "items": ["a", "b"]},
        {"user": {"geo": None, "id": 2**60}, "items": None, "more": {"x": [1]}},
        {"user": {"id": 9}, "items": []},
        {"user.geo.country": "de", "user": {"id": 1}},
    ]
    fields = [
        Field("user.geo.country", default="?"),
        _int("user.id"),
        Field("items", bag=True),
    ]
    table = pa.table(
        {
            "user": [
                {"geo": {"country": "fr"}, "id": 7},
                {"geo": None, "id": 8},
            ],
            "items": [["a"], None],
        }
    )
    typed = pa.table(
        {
            "double_id": [7.0, None, 2.0**53],
            "text_id": ["7", "8.0", None],
            "large": pa.array(["a", None, "b"], pa.large_string()),
            "coded": pa.array(["x", "y", "x"]).dictionary_encode(),
            "uint64": pa.array([2**64 - 1, 0, 2**63], pa.uint64()),
            "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
            "bool": [True, False, True],
            "at": pa.array([_DAY] * 3, pa.timestamp("us", "UTC")),
            "day": pa.array([_DAY.date()] * 3),
            "doubles": [[1.0, 2.0], None, []],
        }
    )
    lists = pa.table(
        {
            "user": [{"tags": [f"tag {i}"] * (i % 3)} for i in range(12)],
            "ids": [None, *([i] * (i % 4) for i in range(11))],
            "weights": pa.array(
                [[0.5] * (i % 5) for i in range(12)],
                pa.large_list(pa.float32()),
            ),
        }
    )
    of_types = [
        _int("double_id", -1),
        _int("text_id", -1),
        Field("large"),
        Field("coded"),
        Field("uint64", "uint64"),
        _float("decimal"),
        Field("bool", "int32"),
        _int("at", time="s"),
        _int("day", time="s"),
        Field("doubles", bag=True),
    ]
    return [
        RealFile(
            "nested_events.jsonl",
            "\n".join(map(json.dumps, events)),
            fields,
            "jsonl",
        ),
        RealFile(
            "nested.parquet",
            lambda p: parquet.write_table(table, p),
            fields,
            "parquet",
        ),
        RealFile(
            "typed.parquet",
            lambda p: parquet.write_table(typed, p, row_group_size=2),
            of_types,
            "parquet",
        ),
        RealFile(
            "double_ids_as_text.parquet",
            lambda p: parquet.write_table(
                typed.select(["double_id", "uint64"]), p
            ),
            [Field("double_id"), Field("uint64")],
            "parquet",
        ),
        RealFile(
            "lists.parquet",
            lambda p: parquet.write_table(lists, p, row_group_size=5),
            [
                Field("user.tags", bag=True),
                Field("ids", "int64", bag=True),
                Field("weights", "float32", bag=True),
            ],
            "parquet",
        ),
    ]


def _over_time():
    later = [
        Field("device", default="?", optional=True),
        _int("age", -1, optional=True),
    ]
    fields = [Field("user"), _int("n"), *later]
    old = pa.table({"user": ["ann", "bob"], "n": [1, 2]})
    return [
        RealFile(
            "before_march.csv", "user,n\nann,1\nbob,2\n", fields, header=True
        ),
        RealFile(
            "march.csv",
            "user,device,n,age\nann,tv,1,\nbob,,2,7.0\n",
            fields,
            header=True,
        ),
        RealFile("before_march_without_names.csv", "ann,1\nbob,2\n", fields),
        RealFile(
            "before_march.parquet",
            lambda p: parquet.write_table(old, p),
            fields,
            "parquet",
        ),
    ]


def all_files():
    """A list of RealFile, with different names."""
    makers = [_movielens, _census_and_books, _advertising, _spreadsheets]
    makers += [_frames, _databases, _bags_and_ids, _times, _objects, _over_time]
    return [one for make in makers for one in make()]
