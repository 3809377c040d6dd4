# A dictionary of a million entries, and a child that writes out what it was, as programs do that fork to save.
import os

entries = {number: f"value {number}" for number in range(1_000_000)}


def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith(name + ":"))


print(f"shared={status('RssShmem')} others={status('RssAnon')}", flush=True)
ready, go = os.pipe()
child = os.fork()
if child == 0:
    os.close(go)
    os.read(ready, 1)
    whole = len(entries) == 1_000_000 and all(value == f"value {number}" for number, value in entries.items())
    os._exit(0 if whole else 1)
os.close(ready)
for number in entries:
    entries[number] = None
entries[-1] = "more"
os.close(go)
assert os.waitpid(child, 0)[1] == 0, "the child's dictionary is of another moment"
assert len(entries) == 1_000_001 and entries[5] is None
print("as it was")
