# Runs queries on TPC-H's Parquet files by DuckDB. The first line of the standard input is a JSON object: `folder`, `tables`, `threads`
# (null: DuckDB's default), `memory` in bytes (null: likewise), `reads_itself`, and `queries`, each with a number and a text. Prints `ready`; after another
# line, it runs the queries and prints one JSON object for each of them.
import json, sys, time
import duckdb

task = json.loads(sys.stdin.readline())
connection = duckdb.connect()
if task["threads"] is not None:
    connection.execute(f"set threads = {task['threads']}")
if task["reads_itself"]:
    # A query's own thread reads, and no other thread reads ahead. Versions before 2 have no threads for that.
    if connection.execute("select count(*) from duckdb_settings() where name = 'async_threads'").fetchone()[0]:
        connection.execute("set async_threads = 0")
if task["memory"] is not None:
    connection.execute(f"set memory_limit = '{task['memory']}B'")
connection.execute(f"set temp_directory = '{task['folder']}'")
for table in task["tables"]:
    connection.execute(f"create view {table} as select * from read_parquet('{task['folder']}/{table}.parquet')")
print("ready", flush=True)
sys.stdin.readline()
for number, text in task["queries"]:
    start, cpu = time.perf_counter_ns(), time.process_time_ns()
    rows = connection.execute(text).fetchall()
    wall, cpu = time.perf_counter_ns() - start, time.process_time_ns() - cpu
    rows = [["" if value is None else str(value) for value in row] for row in rows]
    print(json.dumps({"query": number, "wall_ns": wall, "cpu_ns": cpu, "rows": rows}), flush=True)
