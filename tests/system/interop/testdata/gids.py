# Changes the addresses and the state of eth0, and prints the GID table of rxe0 after each step. The
# argument is the IPv6 address of eth0.
import ipaddress, os, subprocess, sys, time

port = "/sys/class/infiniband/rxe0/ports/1/"
own6 = sys.argv[1] + "/64"

def read(path):
    with open(port + path) as f:
        return f.read().strip()

def table():
    found = {}
    for i in range(12): # more than there are addresses
        gid = ipaddress.ip_address(read("gids/%d" % i))
        if int(gid):
            try:
                found[i] = (gid, read("gid_attrs/types/%d" % i))
            except OSError:
                pass # it has just been removed
    return found

# addresses returns those that have GIDs from index 1 on.
def addresses():
    out = subprocess.run(["ip", "-o", "addr", "show", "dev", "eth0"], stdout=subprocess.PIPE, text=True).stdout
    words = [l.split()[3].split("/")[0] for l in out.splitlines() if " scope link" not in l]
    return {ipaddress.ip_address("::ffff:" + w if "." in w else w) for w in words}

def settle():
    give_up = time.time() + 10
    while time.time() < give_up:
        t = table()
        if {gid for i, (gid, _) in t.items() if i} == addresses():
            return t
        time.sleep(0.02)
    sys.exit("after 10 seconds, the GIDs are %s, and the addresses %s" % (t, addresses()))

def step(name, *commands):
    t = settle()
    for c in commands:
        subprocess.run(("ip " + c).split(), check=True)
        t = settle()
    print("==", name)
    for i, (gid, kind) in t.items():
        print(i, "%032x" % int(gid), kind)

step("start")
step("addresses are added", "addr add 10.78.0.9/24 dev eth0", "addr add fd78::9/64 dev eth0 nodad")
step("the link is down", "link set eth0 down")
step("the link is up", "link set eth0 up")
step("IPv6 addresses are added again", "addr add " + own6 + " dev eth0 nodad", "addr add fd78::9/64 dev eth0 nodad")
step("an address is removed", "addr del 10.78.0.9/24 dev eth0")
step("it is added again", "addr add 10.78.0.9/24 dev eth0")
step("another is added meanwhile", "addr del 10.78.0.9/24 dev eth0", "addr add 10.79.0.9/24 dev eth0",
    "addr add 10.78.0.9/24 dev eth0")
step("two come back in the other order", "addr del 10.78.0.9/24 dev eth0", "addr del 10.79.0.9/24 dev eth0",
    "addr add 10.78.0.9/24 dev eth0", "addr add 10.79.0.9/24 dev eth0")
step("IPv6 addresses come back in the other order", "link set eth0 down", "link set eth0 up",
    "addr add fd78::9/64 dev eth0 nodad", "addr add " + own6 + " dev eth0 nodad")
step("the end", "addr del 10.78.0.9/24 dev eth0", "addr del 10.79.0.9/24 dev eth0", "addr del fd78::9/64 dev eth0",
    "addr del " + own6 + " dev eth0", "addr add " + own6 + " dev eth0 nodad")
