//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestCard: tools and programs see the cards of two rails, in a mount namespace and by the
// preloaded library. testdata/topology.c looks for them as NCCL does.
func TestCard(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/ibstat", "infiniband-diags")
	needs(t, "/usr/bin/lstopo-no-graphics", "hwloc-nox")
	needs(t, "/usr/bin/lspci", "pciutils")
	needs(t, "/usr/bin/fi_info", "libfabric-bin")
	needs(t, "/usr/bin/rdma", "iproute2")
	program := filepath.Join(build(t), "topology")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", program, "testdata/topology.c",
		"-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	dir := shared(t)
	tools := []struct {
		command string
		wants   []string // in the order of the output, without the white space
	}{
		{program, []string{
			"mlx5_0: vendor 0x2c9, part 0x1021, firmware 28.39.3004",
			"/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0 class 0x020000, 32.0 GT/s PCIe, x16, NUMA node",
			"/sys/devices/pci0000:17/0000:17:00.0 class 0x060400, 32.0 GT/s PCIe, x16, NUMA node",
			"bnxt_re0: vendor 0x14e4, part 0x1750, firmware 230.0.157.0",
			"/sys/devices/pci0000:37/0000:37:00.0/0000:38:00.0 class 0x020000, 16.0 GT/s PCIe, x16, NUMA node",
		}},
		{"ibstat", []string{"CA 'bnxt_re0'", "Firmware version: 230.0.157.0", "CA 'mlx5_0'", "CA type: MT4129", "State: Active",
			"Physical state: LinkUp", "Rate: 400", "Link layer: Ethernet"}},
		{"ibstatus", []string{"Infiniband device 'bnxt_re0' port 1 status:", "rate: 100 Gb/sec (4X EDR)",
			"Infiniband device 'mlx5_0' port 1 status:", "state: 4: ACTIVE", "rate: 400 Gb/sec (4X NDR)"}},
		{"lstopo-no-graphics", []string{"PCIBridge", "PCI 18:00.0 (Ethernet)", `Net "lo"`, `OpenFabrics "mlx5_0"`, "PCI 38:00.0 (Ethernet)",
			`OpenFabrics "bnxt_re0"`}},
		{"lspci -vn", []string{"18:00.0 0200: 15b3:1021", "37:00.0 0604: 1b36:000c", "38:00.0 0200: 14e4:1750 (rev 11)"}},
		{"rdma dev", []string{"0: bnxt_re0: node_type ca", "fw 230.0.157.0 node_guid", "1: mlx5_0: node_type ca", "fw 28.39.3004 node_guid"}},
		{"rdma link", []string{"link bnxt_re0/1 state ACTIVE physical_state LINK_UP netdev lo",
			"link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev lo"}},
		{"rdma stat", []string{"link bnxt_re0/1 access_denied 0", "link mlx5_0/1 access_denied 0"}},
		{"fi_info -p verbs -v", []string{"device_id: 0x1021", "vendor_id: 0x02c9", "firmware: 28.39.3004"}},
	}
	script := ""
	for i, tool := range tools {
		programs.Ran(t, strings.Replace(filepath.Base(tool.command), "topology", "tests/system/dropin/testdata/topology.c", 1)+
			" with --card", "sockets (RoCEv2)")
		script += fmt.Sprintf("echo 'tool %d'; %s || echo failed\n", i, tool.command)
	}
	run := func(sysfs string, program ...string) string {
		cmd := runner(t.Context(), t, dir, "--card connectx7;bcm57508 --sysfs "+sysfs, program...)
		cmd.Env = append(cmd.Env, "SOFTRNIC_LINK=kernel:lo", "SOFTRNIC_ADDR=127.14.9.1;127.14.9.2", "SOFTRNIC_SHARED=0",
			"PATH=/usr/bin:/bin:/usr/sbin:/sbin")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("--sysfs %s -- %s: %v\n%s", sysfs, program, err, out)
		}
		return string(out)
	}
	for _, sysfs := range sysfsModes(t) {
		out := run(sysfs, "sh", "-c", script)
		for i, tool := range tools {
			_, said, _ := strings.Cut(out, fmt.Sprintf("tool %d\n", i))
			said, _, _ = strings.Cut(said, fmt.Sprintf("tool %d\n", i+1))
			rest := strings.Join(strings.Fields(said), " ")
			for _, want := range tool.wants {
				var ok bool
				if _, rest, ok = strings.Cut(rest, want); !ok {
					t.Errorf("--sysfs %s -- %s does not print %q, or not in the order of %q:\n%s", sysfs, tool.command, want, tool.wants, said)
					break
				}
			}
			if strings.HasSuffix(said, "failed\n") {
				t.Errorf("--sysfs %s -- %s fails:\n%s", sysfs, tool.command, said)
			}
		}
	}
}

// TestCardBesideGPU: on a machine with a GPU below a PCI switch, which a file system in place of
// sysfs has, programs see the card below the same switch, and everything else of the machine. The
// preloaded library shows it by its paths, and in listings only the card.
func TestCardBesideGPU(t *testing.T) {
	gate.System(t)
	interfaces.Root(t)
	const (
		above  = "/sys/devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0"
		gpu    = above + "/0000:5f:00.0/0000:60:00.0"
		script = `set -e
			cp -a /sys/devices/system/cpu/online $1/online
			mount -t tmpfs none /sys
			mkdir -p ` + gpu + ` /sys/bus/pci/devices /sys/bus/pci/drivers /sys/class/pci_bus /sys/class/net /sys/devices/system/cpu /sys/devices/virtual /sys/module
			cp $1/online /sys/devices/system/cpu/
			echo 0x10de >` + gpu + `/vendor; echo 0x030200 >` + gpu + `/class; echo 0 >` + gpu + `/numa_node; echo 0 >` + gpu + `/local_cpulist
			echo 0x060400 >` + above + `/class
			ln -s ../../../..` + gpu + ` /sys/bus/pci/devices/0000:60:00.0
			shift; exec "$@"`
		look = `readlink -f /sys/bus/pci/devices/0000:60:00.0 /sys/class/infiniband/mlx5_0/device
			cat ` + above + `/class ` + gpu + `/vendor ` + above + `/0000:5f:1f.0/class ` + above + `/0000:5f:1f.0/*:00.0/vendor
			ls ` + above
	)
	for _, sysfs := range []string{"on", "preload"} {
		dir := shared(t)
		cmd := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --card connectx7 --sysfs "+sysfs, "sh", "-c", look)
		cmd.SysProcAttr = nil
		cmd.Args = append([]string{"unshare", "-m", "sh", "-c", script, "sh", dir}, cmd.Args...)
		cmd.Path = "/usr/bin/unshare"
		out, err := cmd.CombinedOutput()
		want := gpu + "\n" + above + "/0000:5f:1f.0/0000:ff:00.0\n0x060400\n0x10de\n0x060400\n0x15b3\n"
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("--sysfs %s: %v, %s\nwant %s", sysfs, err, out, want)
		}
		for _, name := range []string{"0000:5f:00.0", "0000:5f:1f.0", "class"} {
			if sysfs == "on" && !strings.Contains(strings.TrimPrefix(string(out), want), name+"\n") {
				t.Errorf("--sysfs %s: %s lists no %s:\n%s", sysfs, above, name, out)
			}
		}
	}
}

// TestCardEFA: a card that programs would use by functions that are not there is refused.
func TestCardEFA(t *testing.T) {
	gate.System(t)
	out, err := runner(t.Context(), t, shared(t), "--card efa --link pipe", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "efadv_create_driver_qp") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSysfsCounters: the counters in sysfs rise while a program runs, also for a tool under another
// softrnic run. iproute2's rdma sees the program's queue pairs.
func TestSysfsCounters(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	for _, sysfs := range []string{"auto", "preload"} {
		dir := shared(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		freePort++
		flags := "--link kernel:lo --addr 127.14.10.1 --sysfs " + sysfs
		const file = "/sys/class/infiniband/softrnic0/ports/1/counters/port_xmit_data"
		program := fmt.Sprintf(`
			ib_write_bw -p %d -D 30 >/dev/null 2>&1 & server=$!
			until grep -q ":$(printf %%04X %[1]d) .* 0A " /proc/net/tcp*; do sleep 0.02; done
			ib_write_bw -p %[1]d -D 30 127.0.0.1 >/dev/null 2>&1 & client=$!
			until test -e %s/stop; do sleep 0.02; done
			kill $server $client; wait
			echo $(cat %s)`, freePort, dir, file)
		writer := runner(ctx, t, dir, flags, "sh", "-c", program)
		var said bytes.Buffer
		writer.Stdout, writer.Stderr = &said, &said
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		reader := fmt.Sprintf(`last=0; for n in 1 2 3; do
			until test $(cat %s) -gt $last; do sleep 0.02; done; last=$(cat %[1]s); echo $last; done
			until %[3]s run --link kernel:lo --addr 127.14.10.1 -- rdma res show qp | grep "type RC state RTS" >%[2]s/qps; do sleep 0.02; done
			touch %[2]s/stop`, file, dir, command(t))
		out, err := runner(ctx, t, dir, flags, "sh", "-c", reader).CombinedOutput()
		if err != nil {
			t.Errorf("--sysfs %s: %v\n%s", sysfs, err, out)
			cancel()
		}
		if err := writer.Wait(); err != nil {
			t.Errorf("--sysfs %s: %v\n%s", sysfs, err, said.String())
		}
		seen := append(strings.Fields(string(out)), strings.Fields(said.String())...)
		if len(seen) != 4 {
			t.Fatalf("--sysfs %s: %s %s", sysfs, out, said.String())
		}
		last := 0
		for _, v := range seen {
			n, err := strconv.Atoi(v)
			if err != nil || n < last {
				t.Errorf("--sysfs %s: port_xmit_data was %q in turn", sysfs, seen)
			}
			last = n
		}
		qps, err := os.ReadFile(filepath.Join(dir, "qps"))
		if err != nil || !strings.Contains(string(qps), "link softrnic0/1 lqpn ") || !strings.Contains(string(qps), "comm ib_write_bw") {
			t.Errorf("--sysfs %s: rdma res: %v\n%s", sysfs, err, qps)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "softrnic/counters/*")); err != nil || len(left) > 0 {
			t.Errorf("--sysfs %s: %v is left (%v)", sysfs, left, err)
		}
	}
}
