# Prints the entries of sysfs of RDMA devices: a line for each, with its type, mode, and target or
# content; of counters only that it is a number. Of the tables of GIDs it prints the first entries, and the last one.
import errno, os, stat

def line(path):
    st = os.lstat(path)
    mode = "%03o" % stat.S_IMODE(st.st_mode)
    if stat.S_ISLNK(st.st_mode):
        return "link " + os.readlink(path)
    if stat.S_ISDIR(st.st_mode):
        return "dir " + mode
    try:
        with open(path, "rb") as f:
            text = f.read().decode(errors="replace").strip().replace("\n", " / ")
    except OSError as e:
        text = errno.errorcode[e.errno]
    return "file " + mode + " " + text

def walk(path):
    name = os.path.basename(path)
    counters = name in ("counters", "hw_counters") or name.startswith("cm_")
    print(path, line(path))
    if os.path.islink(path) and not counters or not os.path.isdir(path):
        return
    if counters:
        for n in sorted(os.listdir(path)):
            print(path + "/" + n, line(path + "/" + n).rsplit(" ", 1)[0], "number")
        return
    names = sorted(os.listdir(path))
    if name in ("gids", "types", "ndevs"):
        numbers = sorted(map(int, names))
        print(path + "/N", "entries", numbers == list(range(len(numbers))), len(numbers))
        print(path + "/last", line(path + "/" + str(numbers[-1])))
        names = [n for n in names if int(n) < 4]
    for n in names:
        walk(path + "/" + n)

for c in ("infiniband", "infiniband_verbs", "infiniband_mad"):
    c = "/sys/class/" + c
    if not os.path.isdir(c):
        continue
    print(c, line(c))
    for n in sorted(os.listdir(c)):
        print(c + "/" + n, line(c + "/" + n))
        if os.path.islink(c + "/" + n):
            walk(os.path.realpath(c + "/" + n))
