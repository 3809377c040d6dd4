# Makes TPC-H's tables as Parquet files, by DuckDB's generator. Prints the name of each table when it begins with it, and then the bytes
# of each column of each table.
#
# python3 load.py FOLDER SCALE ROWS TABLE...
# ROWS: the rows of each row group.
import os, pathlib, sys
import duckdb, duckdb_extension_tpch

folder, scale, rows, tables = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
database = os.path.join(folder, "generated.duckdb")
connection = duckdb.connect(database)
file = next(pathlib.Path(duckdb_extension_tpch.__file__).parent.rglob("tpch.duckdb_extension"))
connection.execute(f"load '{file}'")
# The generator fills all tables at once.
print("table", tables[0], flush=True)
connection.execute(f"call dbgen(sf={scale})")
for number, table in enumerate(tables):
    if number > 0:
        print("table", table, flush=True)
    connection.execute(f"copy {table} to '{folder}/{table}.parquet' (format parquet, row_group_size {rows})")
connection.close()
for name in (database, database + ".wal"):
    if os.path.exists(name):
        os.remove(name)
query = "select path_in_schema, sum(total_compressed_size)::bigint from parquet_metadata(?) group by 1"
for table in tables:
    for column, size in duckdb.execute(query, [f"{folder}/{table}.parquet"]).fetchall():
        print("column", column, size)
print("version", duckdb.__version__)
