//go:build linux && amd64

package interop

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

//go:embed testdata/sysfs.py
var sysfsTree string

//go:embed testdata/gids.py
var gidFlaps string

// asPeer runs a shell script under softrnic run on the machine's own sockets, in namespaces whose
// only interface has the name and the addresses of the peer's. Its devices have the names of the
// kernel's.
func asPeer(ctx context.Context, t *testing.T, p *peer.Peer, script string, args ...string) string {
	t.Helper()
	libs, err := libraries.Directory()
	if err != nil {
		t.Fatal(err)
	}
	setUp := fmt.Sprintf(`set -e
		mount -t sysfs none /sys
		sysctl -qw net.ipv6.conf.default.accept_dad=0
		ip link set lo up
		ip link add eth0 address %v mtu %d type veth peer name other
		ip link set other up
		ip addr add %v/24 dev eth0; ip addr add %v/64 dev eth0
		ip link set eth0 up
		until ip -6 addr show dev eth0 scope link | grep -q fe80; do sleep 0.02; done
		exec "$@"`, p.MAC(), p.MTU, p.Addr4(), p.Addr6())
	cmd := exec.CommandContext(ctx, "unshare", slices.Concat([]string{"--net", "--mount", "sh", "-c", setUp, "sh",
		filepath.Join(libs, "softrnic"), "run", "--link", "kernel:eth0", "--no-shared", "--device", "rxe0,siw0", "--sysfs", "on", "--",
		"sh", "-c", script, "sh"}, args)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestSysfsTree compares the entries of sysfs for the devices of softrnic run with those of the
// kernel's rxe and siw: paths, links, modes and contents. Each difference has a reason. What a
// kernel newer than the table of kernels has otherwise is logged.
func TestSysfsTree(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.Put(ctx, "/tmp/sysfs.py", []byte(sysfsTree)); err != nil {
		t.Fatal(err)
	}
	theirs := tree(p.Run(t, "modprobe -a siw ib_umad && rdma link add siw0 type siw netdev eth0 && python3 /tmp/sysfs.py; "+
		"rdma link del siw0"))
	ours := tree(asPeer(ctx, t, p, `python3 -c "$1"`, sysfsTree))
	if len(theirs) < 50 || len(ours) < 50 {
		t.Fatalf("%d and %d entries", len(ours), len(theirs))
	}
	complain := t.Errorf
	if p.Kernel.Newer {
		complain = func(format string, args ...any) { t.Logf("new in "+p.Versions+": "+format, args...) }
	}
	used := make([]bool, len(sysfsDifferences))
	for _, line := range differences(ours, theirs) {
		i := slices.IndexFunc(sysfsDifferences, func(d difference) bool { return d.of.MatchString(line) })
		if i < 0 {
			complain("%s", line)
		} else {
			used[i] = true
		}
	}
	for i, d := range sysfsDifferences {
		if !used[i] && !d.some {
			complain("there is no difference %v any more: %s", d.of, d.why)
		}
	}
}

// tree returns the lines of testdata/sysfs.py by path.
func tree(lines string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(lines) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = text
	}
	return all
}

// differences returns the lines of a comparison: with + for what only softrnic run has, with - for
// what only the kernel has, and with ! for what differs, with the kernel's after a bar.
func differences(ours, theirs map[string]string) (lines []string) {
	for name, text := range ours {
		if other, ok := theirs[name]; !ok {
			lines = append(lines, "+ "+name+" "+text)
		} else if text != other {
			lines = append(lines, "! "+name+" "+text+" | "+other)
		}
	}
	for name, text := range theirs {
		if _, ok := ours[name]; !ok {
			lines = append(lines, "- "+name+" "+text)
		}
	}
	slices.Sort(lines)
	return lines
}

// difference is a kind of lines of a comparison, and why they are right.
type difference struct {
	of   *regexp.Regexp
	some bool // only with some kernels
	why  string
}

var sysfsDifferences = []difference{
	{regexp.MustCompile(`^- \S+/power[ /]`), false, "the device has no power to manage"},
	{regexp.MustCompile(`^- \S+/issm0`), true, "a subnet manager has no use for a port of Ethernet"},
	{regexp.MustCompile(`^\+ \S+/(rxe0|siw0)/(hca_type|hw_rev|board_id) `), false, "cards have it, and ibstat and others read it"},
	{regexp.MustCompile(`^\+ \S+/(rxe0|siw0)/device[ /]`), false, "cards have it; UCX and pyverbs find the interface and the vendor there"},
	{regexp.MustCompile(`^! \S+/(node_guid|sys_image_guid|fw_ver|node_desc) `), false, "each device has its own"},
	{regexp.MustCompile(`^! \S+/ports/1/rate `), false, "--speed has another default than rxe"},
	{regexp.MustCompile(`^! \S+/ports/1/cap_mask `), false, "siw says that it has device management, too, of which it has none"},
	{regexp.MustCompile(`^[+!] \S+/siw0/ports/1/gid_attrs/ndevs/(0|last) `), true, "siw's GID is in no table with interfaces"},
	{regexp.MustCompile(`^[+!] \S+/ports/1/(hw_counters|counters|cm_\w+) `), false,
		"the counters of all processes are in a directory that they share; cards have counters, too"},
	{regexp.MustCompile(`^[+-] \S+/ports/1/(hw_counters|counters)/`), false, "each kind of device has counters of its own"},
	{regexp.MustCompile(`^! \S+/rxe0/ports/1/gid_attrs/\w+/(\d|last) link /sys/class/net/lo/speed \| file 444 EINVAL$`), false,
		"a file that the kernel itself refuses to read with EINVAL"},
	{regexp.MustCompile(`^! \S+/rxe0/ports/1/(gids|gid_attrs/\w+)/N `), false, "sgid_index has 8 bits"},
}

// TestGIDsAcrossFlaps runs the same commands on a peer's rxe and on a device on kernel sockets, and
// compares the tables of GIDs: the link goes down and up, and addresses are removed and added.
// Where the tables may differ, there is a reason.
func TestGIDsAcrossFlaps(t *testing.T) {
	gate.Long(t)
	p := peer.Boot(t, peer.Config{ID: 3})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.Put(ctx, "/tmp/gids.py", []byte(gidFlaps)); err != nil {
		t.Fatal(err)
	}
	addr6 := p.Addr6().String()
	theirs := sections(p.Run(t, "python3 /tmp/gids.py "+addr6))
	ours := sections(asPeer(ctx, t, p, `exec python3 -c "$@"`, gidFlaps, addr6))
	if len(theirs) < 8 || len(ours) != len(theirs) {
		t.Fatalf("%q\n%q", ours, theirs)
	}
	for i, step := range theirs {
		t.Logf("%s:\nSoftRNIC\n%s%s\n%s", step.name, ours[i].text, p.Versions, step.text)
		why, may := gidDifferences[step.name]
		switch same := ours[i] == step; {
		case same && may:
			t.Errorf("%s: the tables do not differ any more, though %s", step.name, why)
		case !same && !may:
			t.Errorf("%s: the tables differ", step.name)
		}
	}
}

// section is a part of the output of testdata/gids.py: a step, and the table of GIDs after it.
type section struct{ name, text string }

func sections(lines string) (all []section) {
	for part := range strings.SplitSeq(lines, "== ") {
		if name, text, ok := strings.Cut(part, "\n"); ok {
			all = append(all, section{name, text})
		}
	}
	return all
}

// gidDifferences has the steps of TestGIDsAcrossFlaps after which the tables differ, and why.
var gidDifferences = map[string]string{
	"two come back in the other order":            formerIndex,
	"IPv6 addresses come back in the other order": formerIndex,
}

const formerIndex = "an address that comes back has its former index if that is free, so that programs and QPs that know it " +
	"find it there; Linux gives it the first free one"
